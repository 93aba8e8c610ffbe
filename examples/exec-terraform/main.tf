# SPDX-License-Identifier: Apache-2.0
# One instance. The built-in resource needs no provider and no account; put a cloud's machine in its place.

variable "agent_id" {
  type = string
}

variable "cluster_id" {
  type = string
}

variable "pool" {
  type = string
}

variable "coordinator_urls" {
  type = string
}

# Never stored: single-use, and only what boots the machine needs it.
variable "claim_code" {
  type      = string
  sensitive = true
  default   = ""
}

resource "terraform_data" "instance" {
  # With a cloud: the tags of the machine, in the call that makes it.
  input = {
    agent_id   = var.agent_id
    cluster_id = var.cluster_id
    pool       = var.pool
  }
}
