# cause: graph_kept
# from: ray-project/ray#40940
# what: log lines are written later by closures that hold the loss tensors
import torch
from torch import nn
from torchvision.models import mobilenet_v3_large


class LazyLog:
    def __init__(self):
        self.pending = []

    def later(self, write):
        self.pending.append(write)  #?

    def flush(self):
        for write in self.pending:
            write()
        self.pending.clear()


def train_step(model, optimizer, images, labels, log, step):
    logits = model(images)
    loss = nn.functional.cross_entropy(logits, labels)
    entropy = torch.distributions.Categorical(logits=logits, validate_args=False).entropy().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    (-0.01 * entropy).backward(retain_graph=True)  #? #! (-0.01 * entropy).backward()
    optimizer.step()
    #! loss, entropy = loss.item(), entropy.item()
    log.later(lambda: print(f"{step}: loss {loss:.3f}, entropy {entropy:.3f}"))  #?


def main():
    model = mobilenet_v3_large(num_classes=50).cuda().train()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    log = LazyLog()
    for step in range(30):
        images = torch.randn(48, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 50, (48,), device="cuda")
        train_step(model, optimizer, images, labels, log, step)
    log.flush()


main()
