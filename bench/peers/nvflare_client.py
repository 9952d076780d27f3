"""What NVFLARE runs for each client: `WORK METHOD ROUNDS DEVICE`."""

import copy

import nvflare.client as flare
import torch
import work
from nvflare.app_opt.pt.ditto import PTDittoHelper
from nvflare.client import FLModel
from torch import nn


class Ditto(PTDittoHelper):
    """The personal model and its pull are NVFLARE's; the loop it leaves to its users."""

    def local_train(self, client: int, sent: nn.Module) -> None:
        work.epoch(work.asked().work, client, self.model, lambda: self.prox_criterion(self.model, sent))


def main() -> None:
    """One epoch in every round."""
    asked = work.asked()
    flare.init()
    given, client = asked.work, int(flare.get_site_name().removeprefix("site-")) - 1
    model, ditto = given.model(), None
    if asked.method == "ditto":
        own = given.model()
        optimizer = torch.optim.SGD(own.parameters(), lr=given.lr)
        folder = f"{given.path}.personal/{client}"
        ditto = Ditto(nn.CrossEntropyLoss(), own, optimizer, torch.device(asked.device), folder, work.PULL)
    while flare.is_running():
        sent = flare.receive()
        if sent is None:
            break
        model.load_state_dict({name: torch.as_tensor(value) for name, value in sent.params.items()})
        if ditto is not None:
            centre = copy.deepcopy(model).requires_grad_(False)
            ditto.load_model(model.state_dict())
            ditto.local_train(client, centre)
            ditto.save_model()
        work.epoch(given, client, model)
        params = {name: value.cpu() for name, value in model.state_dict().items()}
        flare.send(FLModel(params=params, meta={"NUM_STEPS_CURRENT_ROUND": given.size.steps}))


if __name__ == "__main__":
    main()
