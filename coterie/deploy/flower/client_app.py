"""The silo's Flower app: hands each message to the silo's side."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from coterie.deploy.flower.grid import reply, request_of
from coterie.deploy.home import SILO, SOURCE, settings
from coterie.deploy.messages import Answer
from coterie.deploy.own import read_source
from coterie.deploy.silo import SiloSide
from coterie.errors import BadInput


def handle(message: Message, context: Context) -> Message:
    """Answer one message."""
    folder = Path(os.environ[SILO])
    source, device = read_source((folder / SOURCE).read_text("utf-8"))
    side = SiloSide(settings(folder)["name"], folder, source, device)
    try:
        return reply(message, side.answer(request_of(message)))
    except BadInput as error:
        _note(side, f"refused: {error}")
        return reply(message, Answer(refusal=error.public))
    except Exception as error:
        # What went wrong may quote the data: the coordinator is sent that something did, the silo's log has what.
        _note(side, f"failed: {type(error).__name__}: {error}")
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "its disk is full" if full else f"the silo failed with {type(error).__name__}; see its log"
        return reply(message, Answer(refusal=why))


def _note(side: SiloSide, what: str) -> None:
    with suppress(OSError):  # a full disk takes no notes
        side.note(what)


app = ClientApp()
app.query()(handle)
