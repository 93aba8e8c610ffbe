# SPDX-License-Identifier: Apache-2.0
"""``corral token``: API tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.failing import say
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import moment, table, write, write_json
from corral.model.ids import TokenId
from corral.model.views import NewToken, RotateToken

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import CreatedToken, TokenView

app = typer.Typer(
    help="Make, list and revoke API tokens.", rich_markup_mode=None, no_args_is_help=True, add_completion=False
)


class TokenRole(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"
    PROVISIONER = "provisioner"


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is for; shown in lists.")],
    role: Annotated[
        TokenRole | None,
        typer.Option(
            help="viewer (default) reads, operator runs and cancels, admin also manages tokens, "
            "agent is a static agent and needs --labels, provisioner reports about instances and does nothing else."
        ),
    ] = None,
    labels: Annotated[
        str, typer.Option("--labels", metavar="A,B", help="Make a static agent's token: the labels it offers.")
    ] = "",
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a token. It is printed once, and stored only as a hash.

    A static agent is one token: `corral token create NAME --labels a,b`, then
    `corral agent --url URL --token-file FILE`.
    """
    given = tuple(label.strip() for label in labels.split(",") if label.strip())
    chosen = role or (TokenRole.AGENT if given else TokenRole.VIEWER)
    new = NewToken(name=name, role=chosen.value, labels=given)

    async def work(client: Client) -> CreatedToken:
        return await client.create_token(new)

    made = with_client(context, state_dir, url, work)
    if as_json:
        write_json(made)
    else:
        say(f"token {made.view.id} ({made.view.role}); it is shown only now:")
        write(made.token)


@app.command("list")
def list_tokens(context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the tokens, without the secrets themselves."""

    async def work(client: Client) -> tuple[TokenView, ...]:
        return await client.tokens()

    tokens = with_client(context, state_dir, url, work)
    if as_json:
        write_json(tokens)
        return
    rows = [
        (
            token.id,
            token.name,
            token.role,
            token.prefix,
            moment(token.created_at),
            moment(token.last_used_at),
            moment(token.revoked_at),
        )
        for token in tokens
    ]
    write(table(("TOKEN", "NAME", "ROLE", "PREFIX", "CREATED", "LAST USED", "REVOKED"), rows))


@app.command()
def rotate(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Id of the token (corral token list).")],
    grace: Annotated[
        float, typer.Option("--grace", min=0, metavar="SECONDS", help="How long the old token works beside the new.")
    ] = 3600.0,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a new token in the place of one. It is printed once.

    The old one works on for the grace; a static agent's also ends as soon as the agent has registered with the new
    one. A session that stands goes on.
    """

    async def work(client: Client) -> CreatedToken:
        return await client.rotate_token(TokenId(token), RotateToken(grace=grace))

    made = with_client(context, state_dir, url, work)
    if as_json:
        write_json(made)
    else:
        say(f"token {made.view.id} replaces {token}, which works for {grace:g} s more; it is shown only now:")
        write(made.token)


@app.command()
def revoke(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Id of the token (corral token list).")],
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token, for good."""

    async def work(client: Client) -> TokenView:
        return await client.revoke_token(TokenId(token))

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
    else:
        say(f"token {view.id} ({view.name}) is revoked")
