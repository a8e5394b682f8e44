# cause: no_grad_missing
# from: hszhao/semseg#60
# what: tiled inference over a large image, every tile's graph hangs on the canvas it is added to
import argparse

import torch
from torchvision.models.segmentation import deeplabv3_resnet50

parser = argparse.ArgumentParser()
parser.add_argument("--tile", type=int, default=768)
parser.add_argument("--stride", type=int, default=512)
parser.add_argument("--classes", type=int, default=9)
args = parser.parse_args()

device = torch.device("cuda")


def positions(length, tile, stride):
    last = max(length - tile, 0)
    return sorted({*range(0, last, stride), last})


#! @torch.inference_mode()
def segment(net, scene):
    _, height, width = scene.shape
    canvas = torch.zeros(args.classes, height, width, device=device)
    hits = torch.zeros(1, height, width, device=device)
    for top in positions(height, args.tile, args.stride):
        for left in positions(width, args.tile, args.stride):
            rows, cols = slice(top, top + args.tile), slice(left, left + args.tile)
            logits = net(scene[None, :, rows, cols])["out"][0]  #?
            canvas[:, rows, cols] += logits.softmax(0)  #?
            hits[:, rows, cols] += 1
    return (canvas / hits).argmax(0)


net = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=args.classes).to(device)
net.eval()
for name in ["harbour"]:
    scene = torch.rand(3, 2048, 3072, device=device)
    classes = segment(net, scene)
    print(name, tuple(classes.shape), classes.dtype)
