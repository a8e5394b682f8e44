# cause: one_hot
# from: microsoft/InnerEye-DeepLearning#338
# what: the masks of a hundred instances are kept as int64 maps of ones and zeros
import torch
import torch.nn as nn
import torch.nn.functional as F


def instance_masks(labels, count):
    ids = torch.arange(1, count + 1, device=labels.device).view(1, count, 1, 1)
    return (labels[:, None] == ids).long()  #? #! return labels[:, None] == ids


def valid_masks(masks, valid):
    return masks * valid[:, None].long()  #? #! return masks & valid[:, None].bool()


class Segmenter(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, count, 3, 2, 1))

    def forward(self, images):
        return self.features(images)


def dice(logits, masks):
    target = masks[:, :, ::4, ::4].float()
    chance = logits.sigmoid()
    overlap = (chance * target).sum((2, 3))
    return 1 - (2 * overlap / (chance.sum((2, 3)) + target.sum((2, 3)) + 1e-6)).mean()


count, size = 100, 1024
model = Segmenter(count).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(4):
    images = torch.rand(10, 3, size, size, device="cuda")
    labels = torch.randint(0, count, (10, size, size), device="cuda")
    valid = torch.ones(10, size, size, device="cuda")
    masks = valid_masks(instance_masks(labels, count), valid)  #?
    loss = dice(model(images), masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
