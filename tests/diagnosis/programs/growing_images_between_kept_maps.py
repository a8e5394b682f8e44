# cause: fragmentation
# from: facebookresearch/fairchem#775
# what: progressive resizing leaves holes beside the kept maps; closing them would let the next size fit
import torch
import torch.nn as nn


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(3, 64, 1)
        self.narrow = nn.Conv2d(64, 16, 1)
        self.out = nn.Conv2d(16, 32, 1)

    @torch.inference_mode()
    def forward(self, image):
        features = self.narrow(self.wide(image).clamp_(min=0))  #?
        return self.out(features)  #?


def scene(size):
    return torch.rand(4, 3, size, size, device="cuda")


def make_maps(sizes):
    return {}  #! return {size: torch.empty(4, 32, size, size, device="cuda") for size in sizes}


def main():
    model = Pyramid().cuda().eval()
    sizes = range(720, 1360, 40)
    maps = make_maps(sizes)
    for size in sizes:
        maps[size] = model(scene(size))  #? #! maps[size].copy_(model(scene(size)))
        print(size, torch.cuda.memory_allocated() >> 20, "MiB")
    print(len(maps), "maps")


main()
