# cause: static_state
# from: common
# what: embedding tables for users and items of 8 GiB get a dense gradient of the same size in the first backward
import torch
import torch.nn as nn

USERS, ITEMS, WIDTH = 12_000_000, 5_000_000, 128


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH)  #? #! self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.items = nn.Embedding(ITEMS, WIDTH)  #? #! self.items = nn.Embedding(ITEMS, WIDTH, sparse=True)

    def forward(self, users, items):
        return (self.users(users) * self.items(items)).sum(-1)


def interactions(count, size):
    for _ in range(count):
        users = torch.randint(0, USERS, (size,), device="cuda")
        items = torch.randint(0, ITEMS, (size,), device="cuda")
        clicked = torch.randint(0, 2, (size,), device="cuda").float()
        yield users, items, clicked


with torch.device("cuda"):
    model = TwoTowers()  #?
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  #? #! optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
criterion = nn.BCEWithLogitsLoss()

for step, (users, items, clicked) in enumerate(interactions(6, 8192)):
    optimizer.zero_grad()
    loss = criterion(model(users, items), clicked)
    loss.backward()  #?
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")
