#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A provisioner whose instances are agents on this very machine. See README.md.

here=$(dirname "$0")
. "$here/../lib/provisioner.sh"

provisioner_create() {
	# By the environment, never by an argument: every user of the machine can read arguments.
	# shellcheck disable=SC2086
	CORRAL_CLAIM_CODE=$claim_code sh "$here/../lib/local-agent.sh" create "$cluster_id" "$agent_id" $coordinator_urls
}

provisioner_destroy() {
	sh "$here/../lib/local-agent.sh" destroy "$cluster_id" "$agent_id"
}

provisioner_list() {
	sh "$here/../lib/local-agent.sh" list "$cluster_id"
}

provisioner_main "${CORRAL_PROVISIONER_STATE:-$HOME/.local/state/corral-exec-local}"
