package scd

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// keyIndex finds a node by its key bytes without allocating: open addressing
// over node numbers, hashes kept beside them. It holds the keys of one round.
type keyIndex struct {
	seed   maphash.Seed
	slots  []int32 // node number + 1; 0 is empty. Length a power of two, at most half full
	keys   []Key
	hashes []uint64
}

// lookup returns the node number of key and whether it was there already.
func (x *keyIndex) lookup(key Key) (n int, found bool) {
	if x.slots == nil {
		x.seed = maphash.MakeSeed()
		x.slots = make([]int32, 1024)
	}
	h := maphash.Bytes(x.seed, key)
	mask := uint64(len(x.slots) - 1)
	i := h & mask
	for x.slots[i] != 0 {
		n := int(x.slots[i] - 1)
		if x.hashes[n] == h && bytes.Equal(x.keys[n], key) {
			return n, true
		}
		i = (i + 1) & mask
	}
	n = len(x.keys)
	x.keys = append(x.keys, key)
	x.hashes = append(x.hashes, h)
	x.slots[i] = int32(n + 1)
	if 2*len(x.keys) > len(x.slots) {
		x.grow()
	}
	return n, false
}

func (x *keyIndex) grow() {
	x.slots = make([]int32, 2*len(x.slots))
	mask := uint64(len(x.slots) - 1)
	for n, h := range x.hashes {
		i := h & mask
		for x.slots[i] != 0 {
			i = (i + 1) & mask
		}
		x.slots[i] = int32(n + 1)
	}
}

// reset forgets all keys. The slot table is kept unless it outgrew what the last
// rounds needed: clearing a huge one for every small round would cost more.
func (x *keyIndex) reset() {
	if len(x.slots) > 64*1024 && len(x.keys) < len(x.slots)/64 {
		x.slots = make([]int32, 1024)
	} else {
		clear(x.slots)
	}
	clear(x.keys) // let go of the rows' memory
	x.keys, x.hashes = x.keys[:0], x.hashes[:0]
}

// sorted returns the node numbers in key order. The order only serves index
// locality in the destination, so bytes are compared as they are: for a leading
// binary integer that is numeric order (negative numbers apart).
func (x *keyIndex) sorted() []int32 {
	type item struct {
		prefix uint64
		n      int32
	}
	items := make([]item, len(x.keys))
	inOrder := true
	for n, k := range x.keys {
		items[n] = item{prefix(k), int32(n)}
		if n > 0 && inOrder {
			inOrder = items[n-1].prefix < items[n].prefix
		}
	}
	if !inOrder {
		slices.SortFunc(items, func(a, b item) int {
			if a.prefix != b.prefix {
				if a.prefix < b.prefix {
					return -1
				}
				return 1
			}
			return bytes.Compare(x.keys[a.n], x.keys[b.n])
		})
	}
	order := make([]int32, len(items))
	for i := range items {
		order[i] = items[i].n
	}
	return order
}

// prefix is the first eight value bytes of the key's first column.
func prefix(k Key) uint64 {
	const header = 5 // state and length
	if len(k) >= header+8 {
		return binary.BigEndian.Uint64(k[header:])
	}
	var b [8]byte
	if len(k) > header {
		copy(b[:], k[header:])
	}
	return binary.BigEndian.Uint64(b[:])
}
