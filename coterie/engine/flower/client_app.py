"""The silo's Flower app: hands each message to the silo's side."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from coterie.engine.flower.grid import reply, request_of
from coterie.engine.flower.messages import Answer
from coterie.engine.flower.own import Source
from coterie.engine.flower.silo import SiloSide
from coterie.errors import BadInput


def handle(message: Message, context: Context) -> Message:
    """Answer one message."""
    own = {key: str(value) for key, value in context.node_config.items()}
    side = SiloSide(own["silo"], Path(own["folder"]), Source.read(own["source"]), own.get("device", "auto"))
    try:
        return reply(message, side.answer(request_of(message)))
    except BadInput as error:
        side.note(f"refused: {error}")
        return reply(message, Answer(refusal=str(error)))
    except Exception as error:
        # What went wrong may quote the data: the coordinator hears that something did, the silo's log says what.
        side.note(f"failed: {type(error).__name__}: {error}")
        return reply(message, Answer(refusal=f"the silo failed with {type(error).__name__}; see its log"))


app = ClientApp()
app.query()(handle)
