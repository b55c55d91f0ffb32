package control

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// samePeer refuses the other side of a connection unless it is the same user, or the
// superuser, who could read the file anyway.
func samePeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("look who is on the other side: %w", err)
	}
	if int(peer.Uid) != os.Geteuid() && peer.Uid != 0 {
		return fmt.Errorf("user id %d is on the other side, not %d", peer.Uid, os.Geteuid())
	}
	return nil
}
