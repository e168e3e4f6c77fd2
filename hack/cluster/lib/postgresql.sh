# shellcheck shell=bash
# Katib's database: Debian's PostgreSQL, beside the kubelet on the bridge's address, with its data in the cluster's state.

# Not the usual port: where Debian starts services as it installs them, its own has that.
POSTGRESQL_PORT=54320
# It refuses to run as root. The capability lets it into a state folder below a folder that only root may enter.
AS_POSTGRES=(setpriv --reuid=postgres --regid=postgres --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search)

start_postgresql() {
  local data=$STATE/postgresql programs
  if daemon_is_alive postgresql; then return; fi
  ensure_debian /usr/lib/postgresql:postgresql setpriv:util-linux
  programs=$(find /usr/lib/postgresql -path '*/bin/postgres' -printf '%h\n' | sort -V | tail -n 1)
  if [ ! -f "$data/PG_VERSION" ]; then
    rm -rf "$data"
    install -d -o postgres -g postgres -m 700 "$data"
    logged "initdb" "$LOGS/initdb.log" "${AS_POSTGRES[@]}" "$programs/initdb" -D "$data" --locale=C.UTF-8 --auth=trust --no-sync
    echo "host all all $POD_CIDR trust" >>"$data/pg_hba.conf"
  fi
  # Its data lasts as long as the cluster, so it need not survive a power cut.
  start_daemon postgresql "${AS_POSTGRES[@]}" \
    "$programs/postgres" -D "$data" -h "$NODE_IP" -p "$POSTGRESQL_PORT" -k "" -c fsync=off
  wait_for_daemon postgresql 30 "$programs/pg_isready" -q -h "$NODE_IP" -p "$POSTGRESQL_PORT"
}
