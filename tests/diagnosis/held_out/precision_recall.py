# cause: one_temporary
# from: marcojira/fld#8
# what: a block of the distance matrix between samples and the whole data set is too large
import torch


class Manifold:
    """Precision and recall of generated images by k nearest neighbours."""

    def __init__(self, k=4, block=10_000):  #! def __init__(self, k=4, block=1000):
        self.k = k
        self.block = block

    def radii(self, features):
        found = []
        for start in range(0, len(features), self.block):
            distances = torch.cdist(features[start:start + self.block], features)  #?
            found.append(distances.topk(self.k + 1, largest=False).values[:, -1])
        return torch.cat(found)

    def share_inside(self, samples, features, radii):
        inside = []
        for start in range(0, len(samples), self.block):
            distances = torch.cdist(samples[start:start + self.block], features)
            inside.append((distances <= radii).any(dim=1))
        return torch.cat(inside).float().mean().item()

    def compute(self, real, generated):
        precision = self.share_inside(generated, real, self.radii(real))  #?
        recall = self.share_inside(real[:len(generated)], generated, self.radii(generated))
        return precision, recall


def embed(count, width=768, batch=50_000):
    projection = torch.nn.Linear(1024, width, device="cuda")
    features = torch.empty(count, width, device="cuda")
    with torch.no_grad():
        for start in range(0, count, batch):
            n = min(batch, count - start)
            features[start:start + n] = projection(torch.rand(n, 1024, device="cuda"))
    return features


torch.manual_seed(0)
real = embed(420_000)
generated = embed(50_000)
print("precision %.3f recall %.3f" % Manifold().compute(real, generated))
