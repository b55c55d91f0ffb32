package postgres

import (
	"bytes"
	"hash/maphash"
	"slices"

	"tailrace/scd/sequenced"
)

// knowledge is what the last lookup of a target has shown: which keys were asked for,
// from which sequence on, and which records there are. As long as nobody else writes
// (the epoch sees to that) and we have not written since, a record that was asked for
// and not told of is not there: it can be copied in without looking. Most are so.
//
// It holds for the next batch alone.
type knowledge struct {
	asked []sequenced.Lookup // sorted by key; nil where they were not
	told  map[uint64]struct{}
}

var seed = maphash.MakeSeed()

func hashOf(key, seq, at []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, b := range [][]byte{key, seq, at} {
		h.Write(b)
		h.WriteByte(byte(len(b)))
	}
	return h.Sum64()
}

func newKnowledge(asked []sequenced.Lookup) *knowledge {
	if !slices.IsSortedFunc(asked, func(a, b sequenced.Lookup) int { return bytes.Compare(a.Key, b.Key) }) {
		asked = nil
	}
	return &knowledge{asked: asked, told: make(map[uint64]struct{}, len(asked))}
}

func (k *knowledge) tell(r *sequenced.Record) { k.told[hashOf(r.Key, r.Seq, r.At)] = struct{}{} }

// there reports whether a record was told of. It may err on the side of yes.
func (k *knowledge) there(key, seq, at []byte) bool {
	_, yes := k.told[hashOf(key, seq, at)]
	return yes
}

// sort divides puts, in the order of their keys, into those that are not there, those
// that are not there and take the place of one that is, and the others.
func (k *knowledge) sort(puts []put) (fresh, moves, others []put) {
	if k == nil {
		return nil, nil, puts
	}
	asked := k.asked
	for _, p := range puts {
		for len(asked) > 0 && bytes.Compare(asked[0].Key, p.Key) < 0 {
			asked = asked[1:]
		}
		known := len(asked) > 0 && bytes.Equal(asked[0].Key, p.Key) && bytes.Compare(asked[0].Seq, p.Seq) <= 0
		switch {
		case !known || k.there(p.Key, p.Seq, p.At):
			others = append(others, p)
		case p.old == nil:
			fresh = append(fresh, p)
		case k.there(p.old.Key, p.old.Seq, p.old.At):
			moves = append(moves, p)
		default:
			others = append(others, p)
		}
	}
	return fresh, moves, others
}
