# shellcheck shell=bash
# Saying what happens: progress, long steps with a log, and failures that name the log and show its end.

say() { printf '%s\n' "$*" >&2; }

# fail MESSAGE [NEXT STEP]: one line for what is wrong, one for what to do.
fail() {
  say "${0##*/}: $1"
  [ $# -lt 2 ] || say "  next: $2"
  exit 1
}

# fail_with_log MESSAGE LOG: what is wrong, which log to read, and its last lines.
fail_with_log() {
  say "${0##*/}: $1; its log is $2, which ends with"
  tail -n 15 "$2" 2>/dev/null | sed 's/^/    | /' >&2
  exit 1
}

# logged LABEL LOG COMMAND…: runs the command with its output in LOG, and says every 30 s that it still runs.
logged() {
  local label=$1 log=$2 began=$SECONDS pid next
  shift 2
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  next=$((began + 30))
  while kill -0 "$pid" 2>/dev/null; do
    if [ "$SECONDS" -ge "$next" ]; then
      say "  $label … $((SECONDS - began)) s"
      next=$((next + 30))
    fi
    sleep 0.2
  done
  wait "$pid" || fail_with_log "$label failed after $((SECONDS - began)) s" "$log"
  say "  $label: done in $((SECONDS - began)) s"
}

# start_behind LOG COMMAND…: starts a command that gets the time that others leave, in a session of its own, so that all of it can be
# ended. With NICENESS=0 a command gets its time as usual: daemons that it starts keep what it has.
start_behind() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  setsid env -u NICENESS nice -n "${NICENESS:-10}" "$@" >"$log" 2>&1 </dev/null &
  BEHIND=$! BEHIND_LOG=$log
}

# finish_behind LABEL: waits for it, and fails with its log.
finish_behind() {
  logged "$1" "$BEHIND_LOG.wait" until_ended "$BEHIND"
  wait "$BEHIND" || fail_with_log "$1: failed" "$BEHIND_LOG"
  # Its number may be another's from now on.
  BEHIND=
}

until_ended() { while kill -0 "$1" 2>/dev/null; do sleep 0.2; done; }

end_behind() { [ -z "${BEHIND:-}" ] || kill -- "-$BEHIND" 2>/dev/null || :; }
