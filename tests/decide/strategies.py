# SPDX-License-Identifier: Apache-2.0
"""Small worlds: few labels and short lists, so that things meet."""

from __future__ import annotations

from hypothesis import strategies as st

from corral.decide.matching import Offered, Wanted
from corral.model.events import Webhook
from corral.model.pools import Pool

SECOND = 1_000_000
NOW = 10_000 * SECOND
WORDS = ("a", "b", "c")

label_sets = st.frozensets(st.sampled_from(WORDS), max_size=3)
mostly_none = st.sampled_from((frozenset(), frozenset(), frozenset(), *(frozenset({word}) for word in WORDS)))
wanted = st.builds(Wanted, labels=st.frozensets(st.sampled_from(WORDS), max_size=2), excludes=mostly_none)
offered = st.builds(
    Offered, labels=label_sets, mandatory=st.frozensets(st.sampled_from(WORDS), max_size=1), default=st.booleans()
)


EVENTFUL = {"backend": "event", "target": Webhook(url="https://p.example", secret="p")}
_extras = st.fixed_dictionaries(
    {
        "backend": st.just("process"),
        "cpu": st.sampled_from((None, None, 1.0, 0.1)),
        "memory": st.sampled_from((None, None, 100)),
        "cost_per_hour": st.sampled_from((0.0, 0.0, 0.1, 2.0)),
        "max_cpu": st.sampled_from((None, None, 2.0, 0.3)),
        "max_memory": st.sampled_from((None, None, 200)),
        "machine": st.sampled_from(("", "", "", "m")),
        "min_idle": st.sampled_from((0, 0, 0, 1, 2)),
    }
).flatmap(lambda values: st.sampled_from((values, values, {**values, **EVENTFUL})))


@st.composite
def pools(draw: st.DrawFn, most: int = 3) -> tuple[Pool, ...]:
    """Named p0, p1, …; at most one is the default."""
    count = draw(st.sampled_from(range(most + 1)))
    default = draw(st.integers(-1, most))
    return tuple(
        Pool(
            name=f"p{index}",
            labels=(own := draw(label_sets)),
            mandatory=own & draw(mostly_none),
            max_agents=draw(st.integers(0, 4)),
            default=index == default,
            draining=draw(st.integers(0, 9)) == 9,
            idle_timeout=300.0,
            **draw(_extras),
        )
        for index in range(count)
    )
