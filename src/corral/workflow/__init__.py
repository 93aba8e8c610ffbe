# SPDX-License-Identifier: Apache-2.0
"""The author's language: workflows as Python objects, compiled to a lock file that is data.

This package imports the standard library only and runs on any Python from 3.9, because function steps run in
interpreters of the author's choosing, with nothing else of Corral. The modules that read and check lock files
(``lock``, ``validate``) need more and are not imported from here.

    from corral.workflow import Workflow, sh

    ci = Workflow("ci")
    build = ci.job("build", steps=[sh("make")])
    ci.job("test", needs=[build], steps=[sh("make test")])
"""

from corral.workflow.context import Combination, Needed, StepContext
from corral.workflow.language import Event, Job, Matrix, Need, Python, Resources, Retry, Workflow, event, sh, step

__all__ = [
    "Combination",
    "Event",
    "Job",
    "Matrix",
    "Need",
    "Needed",
    "Python",
    "Resources",
    "Retry",
    "StepContext",
    "Workflow",
    "event",
    "sh",
    "step",
]
