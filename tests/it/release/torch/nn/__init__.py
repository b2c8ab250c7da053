"""Modules with parameters."""

import torch


class Module:
    def __init__(self):
        self._parameters, self._buffers, self._modules = {}, {}, {}

    def cuda(self):
        for name, one in self._parameters.items():
            self._parameters[name] = torch.empty(one.numel(), device='cuda', requires_grad=True)
        for one in self._modules.values():
            one.cuda()
        return self


class Linear(Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self._parameters = {'weight': torch.empty(inputs * outputs), 'bias': torch.empty(outputs)}
