# cause: broadcast
# from: pytorch/pytorch#16045
# what: scores of shape (N, 1) meet ratings of shape (N,)
import torch
from torch import nn

USERS, FILMS = 480_000, 17_700


class TwoTower(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.film = nn.Embedding(FILMS, dim)
        self.bias_u = nn.Embedding(USERS, 1)
        self.bias_f = nn.Embedding(FILMS, 1)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, u, f):
        both = torch.cat([self.user(u), self.film(f)], dim=1)
        score = self.mlp(both) + self.bias_u(u) + self.bias_f(f)
        return score  #? #! return score.squeeze(1)


def weighted_rmse(score, rating, weight):
    error = (score - rating) ** 2  #?
    return (weight * error).mean().sqrt()  #?


def sample(n):
    u = torch.randint(USERS, (n,), device="cuda")
    f = torch.randint(FILMS, (n,), device="cuda")
    return u, f, torch.rand(n, device="cuda") * 5, torch.rand(n, device="cuda")


def fit(model, steps, batch_size):
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for _ in range(steps):
        u, f, rating, weight = sample(batch_size)
        opt.zero_grad()
        loss = weighted_rmse(model(u, f), rating, weight)
        loss.backward()
        opt.step()


if __name__ == "__main__":
    fit(TwoTower().cuda(), steps=5, batch_size=40_000)
