# shellcheck shell=bash
# Long-running processes. Each has a log, and a pid file that also holds the start time, by which a reused pid is recognised.

# start_time_of PID: in clock ticks since the machine's boot; nothing for a process that has ended, reaped or not.
start_time_of() { sed -n 's/^.*) //; /^[^ZX]/p' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

daemon_is_alive() {
  local pid started
  read -r pid started 2>/dev/null <"$PIDS/$1" && [ -n "$started" ] && [ "$(start_time_of "$pid")" = "$started" ]
}

# start_daemon NAME COMMAND…: starts it unless it runs already.
start_daemon() {
  local name=$1 pid
  shift
  if daemon_is_alive "$name"; then return; fi
  mkdir -p "$PIDS" "$LOGS"
  (
    close_inherited_files
    exec setsid "$@"
  ) >"$LOGS/$name.log" 2>&1 </dev/null &
  pid=$!
  echo "$pid $(start_time_of "$pid")" >"$PIDS/$name"
}

# Otherwise a lock of the caller's (`flock FILE cluster …`) would be held for as long as the daemon runs.
close_inherited_files() {
  local file
  for file in "/proc/$BASHPID/fd"/*; do
    file=${file##*/}
    if [ "$file" -gt 2 ] && [ -e "/proc/$BASHPID/fd/$file" ]; then eval "exec $file>&-"; fi
  done
}

# stop_daemons NAME…: sends SIGTERM to all, waits for each, and sends SIGKILL after 10 s.
stop_daemons() {
  local name pid
  for name in "$@"; do
    if daemon_is_alive "$name"; then
      read -r pid _ <"$PIDS/$name"
      kill "$pid"
    fi
  done
  for name in "$@"; do
    local tries=100
    while daemon_is_alive "$name"; do
      read -r pid _ <"$PIDS/$name"
      tries=$((tries - 1))
      if [ "$tries" = 0 ]; then kill -KILL "$pid"; fi
      sleep 0.1
    done
    rm -f "$PIDS/$name"
  done
}

# require_alive NAME…: fails with the end of the log of the first that is not.
require_alive() {
  local name
  for name in "$@"; do
    daemon_is_alive "$name" || fail_with_log "$name does not run" "$LOGS/$name.log"
  done
}

# wait_for_daemon NAME SECONDS COMMAND…: until the command succeeds; fails early when the daemon has ended.
wait_for_daemon() {
  local name=$1 until=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    daemon_is_alive "$name" || fail_with_log "$name ended before it was ready" "$LOGS/$name.log"
    [ "$SECONDS" -lt "$until" ] || fail_with_log "$name runs but does not get ready" "$LOGS/$name.log"
    sleep 0.2
  done
}
