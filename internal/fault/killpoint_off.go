//go:build !killpoints

package fault

// KillPoint marks a place at which crash tests kill the process. In a normal
// build it is empty; built with the tag killpoints it obeys TAILRACE_KILL_AT.
func KillPoint(string) {}
