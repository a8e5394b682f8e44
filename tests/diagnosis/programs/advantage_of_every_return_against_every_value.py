# cause: broadcast
# from: common
# what: returns get an extra dimension before the values are subtracted, so the advantages are N x N
import torch
import torch.nn as nn


class ActorCritic(nn.Module):
    def __init__(self, observations=64, actions=6):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observations, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
        self.policy = nn.Linear(256, actions)
        self.value = nn.Linear(256, 1)

    def forward(self, x):
        x = self.body(x)
        return self.policy(x), self.value(x).squeeze(-1)


def discounted(rewards, gamma=0.99):
    powers = gamma ** torch.arange(rewards.shape[0], device=rewards.device)
    return (rewards * powers[:, None]).flip(0).cumsum(0).flip(0) / powers[:, None]


def update(agent, optimizer, observations, actions, rewards):
    logits, values = agent(observations.flatten(0, 1))
    returns = discounted(rewards).flatten()
    advantage = returns[:, None] - values  #? #! advantage = returns - values
    chosen = torch.distributions.Categorical(logits=logits, validate_args=False).log_prob(actions.flatten())
    loss = -(chosen * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean()  #?
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


agent = ActorCritic().cuda()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
for iteration in range(5):
    observations = torch.randn(256, 160, 64, device="cuda")
    actions = torch.randint(0, 6, (256, 160), device="cuda")
    rewards = torch.rand(256, 160, device="cuda")
    print(iteration, update(agent, optimizer, observations, actions, rewards))
