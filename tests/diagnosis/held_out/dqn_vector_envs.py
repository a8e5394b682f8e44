# cause: tensors_kept
# from: common
# what: the replay memory has no limit and lives on the card
import random
from collections import deque, namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", "obs action reward next_obs done")


class Atari:
    """A stand-in for a batch of emulators that render on the GPU."""

    def __init__(self, n):
        self.n = n

    def reset(self):
        return torch.zeros(self.n, 4, 84, 84, device="cuda")

    def step(self, action):
        frames = torch.rand(self.n, 4, 84, 84, device="cuda")  #?
        return frames, torch.rand(self.n, device="cuda"), torch.zeros(self.n, device="cuda")


class QNet(nn.Sequential):
    def __init__(self, actions):
        super().__init__(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))


class Agent:
    def __init__(self, actions, gamma=0.99):
        self.q, self.target = QNet(actions).cuda(), QNet(actions).cuda()
        self.target.load_state_dict(self.q.state_dict())
        self.optimizer = torch.optim.RMSprop(self.q.parameters(), lr=2.5e-4)
        self.memory = deque()  #! self.memory = deque(maxlen=20)
        self.gamma = gamma

    @torch.no_grad()
    def act(self, obs, epsilon=0.1):
        greedy = self.q(obs).argmax(1)
        explore = torch.rand(len(obs), device=obs.device) < epsilon
        return torch.where(explore, torch.randint_like(greedy, 6), greedy)

    def learn(self):
        t = random.choice(self.memory)
        with torch.no_grad():
            goal = t.reward + self.gamma * (1 - t.done) * self.target(t.next_obs).amax(1)
        value = self.q(t.obs).gather(1, t.action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


envs, agent = Atari(768), Agent(6)
obs = envs.reset()
for step in range(400):
    action = agent.act(obs)
    next_obs, reward, done = envs.step(action)  #?
    agent.memory.append(Transition(obs, action, reward, next_obs, done))  #?
    obs = next_obs
    if step > 10 and step % 4 == 0:
        agent.learn()
