# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator key NAME`: the key of a mirror or the aggregator."""

from pathlib import Path

import click

from ..config import Config
from ..keys.pairs import make_key, read_keys
from ..log.ownership import make_folders
from ..words.errors import BadConfig
from ..words.records import AGGREGATOR
from .options import complete_mirror, mirror_settings, with_config


@click.command()
@click.argument("name", shell_complete=complete_mirror)
@click.option(
    "--new", "is_new", is_flag=True, help="Make another key; the present one stays until the roster lacks it."
)
@click.option("--signing", "is_signing", is_flag=True, help="Print the public key of its signatures, for receivers.")
@with_config
def command(config: Config, name: str, is_new: bool, is_signing: bool) -> None:
    """Print the public key of a mirror, and make its key if it has none.

    Run it on the machine of the mirror NAME; the private key never leaves it. NAME may be `aggregator`, too. An operator then
    adds the key to the roster: `vcsreplicator roster add-key NAME KEY`.
    """
    file = find_key_file(config, name)
    known = () if is_new else read_keys(file)
    pair = known[0] if known else make_key(file)
    click.echo(pair.signing if is_signing else pair.public)


def find_key_file(config: Config, name: str) -> Path:
    """Return the file of the keys of this mirror, or of the aggregator.

    Its folder is made if it is missing. Raises BadConfig.
    """
    if name == AGGREGATOR:
        from ..aggregator.settings import AggregatorSettings

        key = config.settings(AggregatorSettings, "aggregator").key
        if key is None:
            raise BadConfig(f"{config.file}: aggregator.key: expected a file for the aggregator's keys, got none")
        file = Path(key)
    else:
        from ..mirror.seals import KEY_FILE

        file = Path(mirror_settings(config, name).folder) / KEY_FILE
    try:
        make_folders(file.parent)
    except OSError as error:
        raise BadConfig(f"{file.parent}: cannot be made: {error.strerror}") from error
    return file
