# SPDX-License-Identifier: Apache-2.0
"""For provisioners that users write: the published rule, kept for them. Standard library only.

A program for an ``exec`` target::

    from corral.provisioner import Event, run

    def create(event: Event) -> str:      # boot one instance tagged with event.agent_id; the provider's id of it
        ...
    def destroy(event: Event) -> None:    # whatever its state; that there is none is success
        ...
    run(state="/var/lib/my-provisioner", create=create, destroy=destroy)

A service for a ``webhook`` target: :class:`corral.provisioner.web.Application`.
"""

from corral.provisioner.events import Event, Malformed
from corral.provisioner.program import run
from corral.provisioner.rule import Instance, Later, Outcome, Provisioner, Refused, Result

__all__ = ["Event", "Instance", "Later", "Malformed", "Outcome", "Provisioner", "Refused", "Result", "run"]
