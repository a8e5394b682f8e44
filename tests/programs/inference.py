"""Run a ResNet-50 over batches of images of different sizes, forward only, and keep the features."""
import argparse

import torch
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--no-grad", action="store_true", help="torch.no_grad() in place of torch.inference_mode()")
args = parser.parse_args()

torch.manual_seed(0)
model = torchvision.models.resnet50(num_classes=1000)
model.fc = torch.nn.Identity()
model = model.eval().cuda()

features = []
with torch.no_grad() if args.no_grad else torch.inference_mode():
    for step in range(args.steps):
        size = 192 + 32 * (step % 3)
        images = torch.rand(args.batch_size, 3, size, size)
        output = model(images.cuda())
        output = torch.nn.functional.normalize(output, dim=-1)
        features.append(output)
        print(f"batch {step}: {tuple(output.shape)}")

features = torch.cat(features)
similarity = features @ features.T
print(f"most similar pair {similarity.fill_diagonal_(-1).max().item():.3f}")
print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
