# cause: backward_once
# from: filipradenovic/cnnimageretrieval-pytorch#20
# what: the losses of all tuples of a batch are summed before the only backward
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

MARGIN = 0.85
NEGATIVES = 3
TUPLES_PER_BATCH = 5


class GeM(nn.Module):
    def __init__(self, p=3.0):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([p]))

    def forward(self, x):
        return F.avg_pool2d(x.clamp(min=1e-6).pow(self.p), x.shape[-2:]).pow(1.0 / self.p).flatten(1)


class RetrievalNet(nn.Module):
    def __init__(self):
        super().__init__()
        backbone = torchvision.models.resnet50(weights=None)
        self.features = nn.Sequential(*list(backbone.children())[:-2])
        self.pool = GeM()
        self.whiten = nn.Linear(2048, 2048)

    def forward(self, image):
        return F.normalize(self.whiten(self.pool(self.features(image))))


def contrastive(descriptors):
    query, positive, negatives = descriptors[:1], descriptors[1:2], descriptors[2:]
    near = (query - positive).pow(2).sum()
    far = (MARGIN - (query - negatives).pow(2).sum(1).add(1e-6).sqrt()).clamp(min=0).pow(2).sum()
    return 0.5 * (near + far)


def tuples(count):
    shapes = [(800, 600), (600, 800), (800, 800), (800, 533)]
    for i in range(count):
        yield [torch.rand(1, 3, *shapes[(i + j) % 4], device="cuda") for j in range(2 + NEGATIVES)]


def train(net, optimizer, batches=2):
    net.train()
    for _ in range(batches):
        optimizer.zero_grad()
        batch_loss = 0
        for images in tuples(TUPLES_PER_BATCH):
            descriptors = torch.cat([net(image) for image in images])  #?
            loss = contrastive(descriptors)
            batch_loss = batch_loss + loss  #? #! loss.backward()
        batch_loss.backward()  #? #!-
        optimizer.step()


net = RetrievalNet().cuda()
train(net, torch.optim.Adam(net.parameters(), lr=1e-6))
