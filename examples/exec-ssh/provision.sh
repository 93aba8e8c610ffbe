#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A provisioner whose instances are agents on another machine, reached by SSH. See README.md.

here=$(dirname "$0")
. "$here/../lib/provisioner.sh"

# The script itself and the claim code go by standard input: nothing of them is in an argument, here or there.
remote() {
	{
		printf 'CORRAL_CLAIM_CODE=%s\n' "$claim_code"
		cat "$here/../lib/local-agent.sh"
	} | ssh -o BatchMode=yes -o ConnectTimeout=10 "$CORRAL_SSH_HOST" sh -s -- "$@"
	code=$?
	# ssh's own failures: nobody answered, so ask again later.
	[ "$code" -ne 255 ] || provisioner_fail 75 "no connection to $CORRAL_SSH_HOST"
	return "$code"
}

provisioner_create() {
	case $claim_code in *[!A-Za-z0-9_]*) provisioner_fail 1 "the claim code is not plain" ;; esac
	# shellcheck disable=SC2086
	remote create "$cluster_id" "$agent_id" $coordinator_urls
}

provisioner_destroy() {
	remote destroy "$cluster_id" "$agent_id"
}

provisioner_list() {
	remote list "$cluster_id"
}

: "${CORRAL_SSH_HOST:?set it to the machine that agents shall run on}"
provisioner_main "${CORRAL_PROVISIONER_STATE:-$HOME/.local/state/corral-exec-ssh}"
