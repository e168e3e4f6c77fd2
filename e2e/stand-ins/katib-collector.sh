#!/bin/sh
# A stand-in for the metrics collector of Katib 0.19, a container beside a trial's training in a shared PID namespace. As Katib's
# pns.go it looks for the pod's processes once, when it starts: those whose parent is PID 0, but PID 1 and itself. The main one is that
# whose command line has "echo completed > /var/log/katib", or else the first. It waits until the main process has ended, and with
# "-w true" (Katib's default) until all have. The file /var/log/katib/PID.pid of the main process must then say "completed"
# (katib#1383, katib#2614). At last it reports the metric to the server of "-s-db".
directory=/var/log/katib marker='echo completed > /var/log/katib' wait_all=true server='' metric=''
while [ $# -gt 0 ]; do
  case $1 in
    -w=*) wait_all=${1#-w=} ;;
    -w) wait_all=$2; shift ;;
    -s-db) server=$2; shift ;;
    -m) metric=$2; shift ;;
  esac
  shift
done

# The PIDs of the other containers' first processes, in the order of their numbers.
root_processes() {
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    if [ "$pid" != 1 ] && [ "$pid" != $$ ] && grep -qs '^PPid:[[:space:]]*0$' "$process/status"; then echo "$pid"; fi
  done | sort -n
}

main='' all=$(root_processes)
for pid in $all; do
  if [ -z "$main" ] || tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF "$marker"; then main=$pid; fi
done
[ -n "$main" ] || { echo "unable to find main pid"; exit 1; }
echo "main is $main of $all"
# Trainings of the scenarios wait for this file. Katib's collector writes none.
: >"$directory/found"
if [ "$wait_all" = true ]; then awaited=$all; else awaited=$main; fi
for pid in $main $awaited; do
  while [ -e "/proc/$pid" ]; do sleep 1; done
  if [ "$pid" = "$main" ] && [ "$(cat "$directory/$pid.pid")" != completed ]; then
    echo "unable to find marker completed for pid $pid"
    exit 1
  fi
done
value=$(sed -n "s/^$metric=//p" "$directory/metrics.log" | tail -n 1)
curl -sSf --max-time 60 "http://$server/" >/dev/null && echo "reported $metric=$value"
