package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// question is what a command that only reads wants to know of the destination. Where
// the destination is a file inside a daemon, the daemon answers it; otherwise the
// command does so itself.
type question struct {
	kind  string
	limit time.Duration // how long a daemon may take; 0: as long as somebody waits
	// answer hands rows on, its header first, or returns a text.
	answer func(ctx context.Context, e *environment, dst sink.Writer, argument []byte, rows control.Rows) (string, error)
}

// look has a question answered.
func (e *environment) look(ctx context.Context, q question, argument any, rows control.Rows) (string, error) {
	text, err := json.Marshal(argument)
	if err != nil {
		return "", err
	}
	dst, err := e.openSink(ctx)
	if err != nil {
		return "", fmt.Errorf("open the destination: %w", err)
	}
	defer dst.Close(ctx)
	here := func() (string, error) { return q.answer(ctx, e, dst, text, rows) }
	embedded, ok := dst.(sink.Embedded)
	if !ok {
		return here()
	}
	return e.askOwner(ctx, embedded, control.Request{Kind: q.kind, Argument: string(text), Limit: q.limit}, queryWait, false, rows, here)
}

// questionKind is a question as the daemon takes it. It is answered beside the batches.
func (e *environment) questionKind(q question, owner sink.Embedded) control.Kind {
	return control.Kind{Name: q.kind, Again: true, Ends: true, AtOnce: queriesAtOnce,
		Do: func(ctx context.Context, r control.Request, rows control.Rows) (string, error) {
			dst, err := owner.Onlooker()
			if err != nil {
				return "", err
			}
			defer dst.Close(context.WithoutCancel(ctx))
			return q.answer(ctx, e, dst, []byte(r.Argument), rows)
		}}
}

// understand reads a question's argument.
func understand(argument []byte, into any) error {
	if err := json.Unmarshal(argument, into); err != nil {
		return fault.Badly("the request is not understood (is the daemon of another version?): %v", err)
	}
	return nil
}
