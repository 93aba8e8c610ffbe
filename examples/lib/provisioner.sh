#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The published rule for provisioners (docs/provisioners.md) in POSIX sh. Source it, define three functions, call one:
#
#   provisioner_create    make one instance, tagged with $cluster_id and $agent_id in the call that makes it; print the
#                         provider's id of it (one word). Return 75 for "try later", other than 0 for "refused".
#   provisioner_destroy   destroy the instance of $agent_id of $cluster_id, in whatever state; that there is none is
#                         success.
#   provisioner_list      print "AGENT_ID PROVIDER_ID" for each instance of $cluster_id that is there now.
#   provisioner_main DIR  handle the event on standard input. DIR: this provisioner's own state; it outlives restarts.
#
# The functions see: cluster_id agent_id pool provider_id claim_code coordinator_urls (words) cpu memory reason.
# A program that create leaves running needs a session of its own (setsid) and its own output, or it ends with the
# event. Needs flock (util-linux), and jq or python3. The claim code is in no file and no argument.

set -u

provisioner_fail() {
	code=$1
	shift
	printf '%s\n' "$*" >&2
	exit "$code"
}

# Shell assignments of all that is used, quoted; nothing where the event cannot be read.
provisioner_fields() {
	if command -v jq >/dev/null 2>&1; then
		jq -r '
			def text: if type == "string" then . else "" end;
			def number: if type == "number" then tostring else "" end;
			(.data | objects) as $d
			| @sh "type=\(.type | text) cluster_id=\($d.cluster_id | text) agent_id=\($d.agent_id | text)",
			  @sh "epoch=\($d.epoch | text) sequence=\($d.sequence | number) pool=\($d.pool | text)",
			  @sh "claim_code=\($d.claim_code | text) provider_id=\($d.provider_id | text)",
			  @sh "cpu=\($d.resources?.cpu? | number) memory=\($d.resources?.memory? | number)",
			  @sh "reason=\($d.reason | text) request=\($d.request | text)",
			  @sh "coordinator_urls=\([$d.coordinator_urls[]? | text] | join(" "))"' 2>/dev/null
	else
		python3 -c '
import json, shlex, sys
try:
    event = json.load(sys.stdin)
    data = event["data"]
    text = lambda value: value if isinstance(value, str) else ""
    number = lambda value: str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
    resources = data.get("resources") or {}
    fields = {"type": text(event.get("type")), "sequence": number(data.get("sequence"))}
    for name in "cluster_id agent_id epoch pool claim_code provider_id reason request".split():
        fields[name] = text(data.get(name))
    for name in ("cpu", "memory"):
        fields[name] = number(resources.get(name))
    fields["coordinator_urls"] = " ".join(text(url) for url in data.get("coordinator_urls") or [])
except Exception:
    sys.exit(1)
print(" ".join(name + "=" + shlex.quote(value) for name, value in fields.items()))'
	fi
}

# Names of files are made of these: letters, digits, _ and -.
provisioner_plain() {
	case $1 in
	'' | *[!A-Za-z0-9_-]*) return 1 ;;
	esac
	[ "${#1}" -le 100 ]
}

provisioner_whole() {
	case $1 in
	'' | *[!0-9]*) return 1 ;;
	esac
	[ "${#1}" -le 15 ]
}

# Replace file $1 by the text $2, so that a crash leaves the old or the new one.
provisioner_write() {
	printf '%s\n' "$2" >"$1.new.$$" && sync "$1.new.$$" && mv "$1.new.$$" "$1" && sync "${1%/*}" ||
		provisioner_fail 75 "cannot write $1"
}

# Per cluster: refuse any epoch below the highest ever seen.
provisioner_fence() {
	generation=${epoch%%.*}
	counter=${epoch#*.}
	provisioner_whole "$generation" && provisioner_whole "$counter" || provisioner_fail 1 "epoch is no GENERATION.COUNTER"
	exec 9>>"$state/locks/epochs"
	flock 9
	seen_generation=0 seen_counter=0
	if [ -e "$state/epochs/$cluster_id" ]; then
		read -r seen_generation seen_counter <"$state/epochs/$cluster_id" || :
		provisioner_whole "$seen_generation" && provisioner_whole "$seen_counter" ||
			provisioner_fail 75 "$state/epochs/$cluster_id is damaged"
	fi
	if [ "$generation" -lt "$seen_generation" ] ||
		{ [ "$generation" -eq "$seen_generation" ] && [ "$counter" -lt "$seen_counter" ]; }; then
		provisioner_fail 77 "stale: epoch $epoch is below $seen_generation.$seen_counter, which was seen"
	fi
	if [ "$generation" -gt "$seen_generation" ] || [ "$counter" -gt "$seen_counter" ]; then
		provisioner_write "$state/epochs/$cluster_id" "$generation $counter"
	fi
	exec 9>&-
}

# What a function of the user's returned: nothing but "later" passes as it is, least of all 77.
provisioner_failed() {
	[ "$1" -ne 75 ] || exit 75
	exit 1
}

provisioner_up() {
	case $seen_state in
	present) printf '{"provider_id": "%s"}\n' "$seen_provider" && return 0 ;;
	destroying | gone) provisioner_fail 1 "the instance of $agent_id was to be destroyed; it is not made again" ;;
	esac
	made=''
	if [ "$seen_state" = creating ]; then
		# The end of an earlier try is not known: did it make one?
		made=$(provisioner_list 8>&- | while read -r agent rest; do [ "$agent" != "$agent_id" ] || printf '%s\n' "${rest:--}"; done | head -n 1)
	fi
	if [ -z "$made" ]; then
		provisioner_write "$record" "$sequence creating -"
		made=$(provisioner_create 8>&-) || provisioner_failed $?
		made=$(printf '%s\n' "$made" | tail -n 1 | tr -cd 'A-Za-z0-9._:/@-')
	fi
	provisioner_write "$record" "$sequence present ${made:--}"
	printf '{"provider_id": "%s"}\n' "$made"
}

provisioner_down() {
	[ -n "$provider_id" ] || [ "$seen_provider" = - ] || provider_id=$seen_provider
	# Also of an agent that nobody knows: its scale-up may still be on the way.
	provisioner_write "$record" "$sequence destroying ${provider_id:--}"
	(provisioner_destroy 8>&- >&2) || provisioner_failed $?
	provisioner_write "$record" "$sequence gone ${provider_id:--}"
}

# Per agent: one event at a time, and no lower sequence.
provisioner_agent() {
	provisioner_plain "$agent_id" || provisioner_fail 1 "agent_id is missing or not plain"
	provisioner_whole "$sequence" || provisioner_fail 1 "sequence is no whole number"
	record=$state/agents/$cluster_id.$agent_id
	lock=$state/locks/$cluster_id.$agent_id
	# Until the file that is locked is the one that has the name: a purge may have removed it in between.
	while :; do
		exec 8>>"$lock"
		flock 8
		[ "$lock" -ef /dev/fd/8 ] && break
	done
	touch "$lock"
	seen_sequence=0 seen_state=unknown seen_provider=-
	if [ -e "$record" ]; then
		read -r seen_sequence seen_state seen_provider <"$record" || :
		provisioner_whole "$seen_sequence" || provisioner_fail 75 "$record is damaged"
	fi
	if [ "$sequence" -lt "$seen_sequence" ]; then
		provisioner_fail 1 "ignored: sequence $sequence is below $seen_sequence, which was seen"
	fi
	"$1"
}

# Forget what has been gone for 30 days; Corral asks again for a day at most.
provisioner_purge() {
	find "$state/agents" -type f -mtime +30 -exec grep -q ' gone ' {} \; -exec rm -f {} \;
	find "$state/agents" "$state/epochs" -type f -name '*.new.*' -mtime +30 -exec rm -f {} \;
	find "$state/locks" -type f -name '*.*' -mtime +30 -exec flock -n {} rm -f {} \;
}

provisioner_inventory() {
	provisioner_purge
	listed=$(provisioner_list) || exit 75
	separator=''
	printf '{"instances": ['
	printf '%s\n' "$listed" | while read -r agent provider; do
		provisioner_plain "$agent" || continue
		printf '%s{"agent_id": "%s", "cluster_id": "%s", "provider_id": "%s"}' \
			"$separator" "$agent" "$cluster_id" "$(printf %s "$provider" | tr -cd 'A-Za-z0-9._:/@-')"
		separator=', '
	done
	printf '], "request": "%s", "complete": true}\n' "$(printf %s "$request" | tr -cd 'A-Za-z0-9._:-')"
}

provisioner_main() {
	state=$1
	umask 077
	mkdir -p "$state/epochs" "$state/agents" "$state/locks" || provisioner_fail 75 "cannot make $state"
	event=$(head -c 262145)
	[ "${#event}" -le 262144 ] || provisioner_fail 1 "the event is larger than 256 KiB"
	assignments=$(printf '%s' "$event" | provisioner_fields)
	[ -n "$assignments" ] || provisioner_fail 1 "the event cannot be read"
	event=''
	eval "$assignments"
	case $type in
	corral.scaler.scale-up.v1 | corral.scaler.scale-down.v1 | corral.scaler.inventory.v1) ;;
	*) provisioner_fail 1 "events of this type are not known to this provisioner" ;;
	esac
	provisioner_plain "$cluster_id" || provisioner_fail 1 "cluster_id is missing or not plain"
	provisioner_fence
	case $type in
	*.scale-up.v1) provisioner_agent provisioner_up ;;
	*.scale-down.v1) provisioner_agent provisioner_down ;;
	*) provisioner_inventory ;;
	esac
}
