# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator decode`: the decoder of submitted messages."""

import functools

import click

from ..config import Config
from ..words.errors import BadConfig
from .options import run_daemon, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Decode submitted messages: validate and enrich each, and remove what identifies a person.

    Reads the raw messages that `input` names until it is stopped. Rejects go to the topic `errors`."""
    from notifier.decode.settings import DecodeSettings

    try:
        from notifier.decode import streaming
    except ModuleNotFoundError as error:
        raise BadConfig(f"{error.name} is not installed; install vcsreplicator[decode]") from None

    settings = config.settings(DecodeSettings, "decode")
    try:
        tools = streaming.open_tools(settings)
    except BadConfig as error:
        raise BadConfig(f"{config.file}: {error}") from error
    run_daemon(config, "decode", functools.partial(streaming.run, tools=tools), settings)
