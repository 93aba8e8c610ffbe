#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A provisioner with Terraform: one working directory and one state per instance. See README.md.

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/provisioner.sh"

root=${CORRAL_PROVISIONER_STATE:-$HOME/.local/state/corral-exec-terraform}

in_terraform() {
	TF_IN_AUTOMATION=1 TF_INPUT=0 TF_CLI_ARGS=-no-color TF_VAR_agent_id=$agent_id TF_VAR_cluster_id=$cluster_id \
		TF_VAR_pool=$pool TF_VAR_coordinator_urls=$coordinator_urls TF_VAR_claim_code=$claim_code \
		terraform -chdir="$root/instances/$cluster_id.$agent_id" "$@" >&2
}

provisioner_create() {
	place=$root/instances/$cluster_id.$agent_id
	mkdir -p "$place" && cp "$here/main.tf" "$place/" && in_terraform init && in_terraform apply -auto-approve || return 1
	echo "$agent_id"
}

provisioner_destroy() {
	place=$root/instances/$cluster_id.$agent_id
	[ -d "$place" ] || return 0
	if [ -e "$place/terraform.tfstate" ]; then
		in_terraform destroy -auto-approve || return 75
	fi
	rm -rf "$place"
}

provisioner_list() {
	for place in "$root/instances/$cluster_id".*; do
		if grep -q '"type": "terraform_data"' "$place/terraform.tfstate" 2>/dev/null; then
			echo "${place##*.} ${place##*.}"
		fi
	done
}

provisioner_main "$root/rule"
