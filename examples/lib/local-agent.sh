#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Agents on the machine that this runs on, one directory each below $HOME/corral-instances (or $CORRAL_INSTANCES):
#
#   local-agent.sh create CLUSTER AGENT URL...   start one; the claim code is in the variable CORRAL_CLAIM_CODE
#   local-agent.sh destroy CLUSTER AGENT
#   local-agent.sh list CLUSTER
#
# `corral` has to be on the PATH.

set -eu
umask 077
root=${CORRAL_INSTANCES:-$HOME/corral-instances}

# Whether the process that the directory names still runs: the same pid *and* start time, and no zombie.
runs() {
	[ -s "$1/pid" ] || return 1
	read -r pid start <"$1/pid" || return 1
	[ -r "/proc/$pid/stat" ] || return 1
	now=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) || return 1
	# shellcheck disable=SC2086
	set -- $now
	[ "${20-}" = "$start" ] && [ "$1" != Z ]
}

create() {
	cluster=$1 agent=$2
	shift 2
	place=$root/$cluster.$agent
	if [ -e "$place/pid" ]; then
		echo "$agent"
		return
	fi
	mkdir -p "$place/work" "$place/cache"
	urls=$(printf '"%s",' "$@")
	printf '{"agent_id": "%s", "coordinator_urls": [%s], "claim_code": "%s", "work_dir": "%s", "cache_dir": "%s"}\n' \
		"$agent" "${urls%,}" "$CORRAL_CLAIM_CODE" "$place/work" "$place/cache" >"$place/agent.json"
	unset CORRAL_CLAIM_CODE
	# A session of its own: whoever called this may end, and everything else of it with it.
	# shellcheck disable=SC2016
	setsid sh -c '
		start=$(sed "s/.*) //" /proc/$$/stat | cut -d " " -f 20)
		echo "$$ $start" >"$1/pid.new" && mv "$1/pid.new" "$1/pid"
		exec corral agent --config "$1/agent.json"' agent "$place" >"$place/log" 2>&1 </dev/null &
	tries=0
	while [ ! -e "$place/pid" ]; do
		tries=$((tries + 1))
		[ "$tries" -lt 200 ] || { echo "the agent did not start: $(tail -n 1 "$place/log")" >&2 && exit 1; }
		sleep 0.05
	done
	echo "$agent"
}

destroy() {
	place=$root/$1.$2
	[ -d "$place" ] || return 0
	tries=0
	while runs "$place"; do
		tries=$((tries + 1))
		# Once: asked twice, an agent ends its job without its clean-up.
		if [ "$tries" -eq 1 ]; then kill -TERM "$pid" 2>/dev/null || :; fi
		if [ "$tries" -gt 200 ]; then kill -KILL "-$pid" 2>/dev/null || :; fi
		sleep 0.05
	done
	# Renamed first: what is half removed is never listed, or taken for an instance.
	rm -rf "$root/.gone.$1.$2"
	mv "$place" "$root/.gone.$1.$2"
	rm -rf "$root/.gone.$1.$2"
}

list() {
	for place in "$root/$1".*; do
		if [ -d "$place" ]; then
			echo "${place##*.} ${place##*.}"
		fi
	done
}

"$@"
