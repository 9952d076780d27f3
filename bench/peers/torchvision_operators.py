"""For libraries that import torchvision for its data sets and networks.

Beside a CPU build of torch the registry's torchvision does not import for want of two operators, called by nobody.
"""

import torch

_missing = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _missing.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
