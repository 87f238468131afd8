"""`vtrim hub serve`: a model hub in a folder, for demos and for networks without the real one."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_shared import AsJson, Debug, answers_mistakes, out, remarks

if TYPE_CHECKING:
    from .local_hub.server import LocalHub

PROXIES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")

hub = typer.Typer(
    name="hub",
    help="A model hub in a folder, without the internet.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


@hub.callback()
def _group() -> None:
    """Keep `serve` a subcommand, though it is the only one."""


@hub.command()
@answers_mistakes
def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where the hub keeps everything; may be new.")
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8090,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    xet: Annotated[
        bool | None,
        typer.Option(
            "--xet/--no-xet",
            help="Serve clients that have Xet switched on, too; they must be on this machine. "
            "The default where only this machine is served.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print each request to standard error.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Serve the model hub in DIR until Ctrl-C; `huggingface_hub` and Transformers work against it.

    Content survives a restart. The two tokens, one that writes and one that reads, are made at
    the first start and kept in DIR/tokens.json, where more users can be added.

    Example: `vtrim hub serve ~/hub --port 8090`
    """
    from .local_hub import LocalHub

    served = LocalHub(folder, host=host, port=port, xet=xet)
    if verbose:
        served.log.on_answer = lambda row: remarks.print(str(row), markup=False, soft_wrap=True)
    try:
        with served:
            _announce(served, as_json)
            while True:
                threading.Event().wait(3600)
    except KeyboardInterrupt:  # the usual end of a server, no accident: exit code 0
        remarks.print(f"stopped; {folder} keeps everything", markup=False)


def _announce(served: LocalHub, as_json: bool) -> None:
    """Print what a client needs to know, and where it may come from."""
    from .local_hub.server import LOOPBACK

    environment = {"HF_ENDPOINT": served.endpoint, "HF_TOKEN": served.token}
    if not served.xet:
        environment["HF_HUB_DISABLE_XET"] = "1"  # without it clients look for a Xet server
    if any(os.environ.get(name) for name in PROXIES):
        environment["NO_PROXY"] = ",".join(filter(None, [served.host, os.environ.get("NO_PROXY")]))
    if as_json:
        facts = {"folder": str(served.folder.resolve()), "endpoint": served.endpoint}
        facts |= {"token": served.token, "read_token": served.read_token}
        facts["namespace"] = served.namespace
        sys.stdout.write(json.dumps({**facts, "environment": environment}) + "\n")
    else:
        out.print(f"endpoint    {served.endpoint}", markup=False)
        out.print(f"token       {served.token}", markup=False)
        out.print(f"read token  {served.read_token}", markup=False)
        out.print(
            f"namespace   {served.namespace}, as in {served.namespace}/my-draft\n", markup=False
        )
        for name, value in environment.items():
            out.print(f"export {name}={value}", markup=False, soft_wrap=True)
    sys.stdout.flush()
    if served.host not in LOOPBACK:
        text = f"listening on {served.host}: others read what is public here, and all unencrypted"
        remarks.print(text, style="yellow", markup=False)
    remarks.print(f"serving {served.folder}; Ctrl-C stops", markup=False)
