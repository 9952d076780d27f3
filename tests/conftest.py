"""One thread: the models of the tests are too small to gain from more, and lose much on cores that are busy."""

import torch

torch.set_num_threads(1)
