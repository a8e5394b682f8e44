//! The census: who held what when memory ran out, as the program itself names it.
//!
//! A recorder inside the process takes it at an out-of-memory: variables, lists, hooks, modules, optimizers, shapes and
//! dtypes. PyTorch's own snapshots have none. It travels as JSON (chunk 11 of `.oomph`); what it says is a stranger's word
//! like the rest of a file, so every field may be missing, and nothing in it is trusted to be small.

use serde::{Deserialize, Serialize};

/// A census that is longer is not read: 100,000 tensors come to a tenth of it.
pub const LARGEST_CENSUS: usize = 8 << 20;
/// How many are kept: the first and the last ones of a program that runs out of memory again and again.
pub const MOST_CENSUSES: usize = 16;

/// Who held what at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Census {
    /// When, in microseconds since 1970.
    pub time: i64,
    /// The device that ran out.
    pub device: u32,
    /// Bytes that were asked for.
    pub asked: u64,
    /// How long it took to take.
    pub milliseconds: f64,
    /// Whether everything was visited: it stops at a limit of time and size.
    pub complete: bool,
    /// The most that the program allocates with unlimited memory, by a second run on a virtual card without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<u64>,
    /// Whether autograd was recording when memory ran out.
    pub grad_enabled: Option<bool>,
    pub card: Card,
    /// The program's own running frames in the thread that asked, innermost first.
    pub frames: Vec<Running>,
    /// Holders, largest first.
    pub holders: Vec<Holder>,
    /// Top-level modules: those that no other module holds.
    pub modules: Vec<Module>,
    pub optimizers: Vec<Optimizer>,
    /// Tensors on the card, largest first, as many as fit.
    pub tensors: Vec<Tensor>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Card {
    /// As the driver names it.
    pub name: String,
    /// All of its memory.
    pub total: u64,
    /// Compute capability.
    pub capability: Option<(u32, u32)>,
    /// Taken by others: total less free less what this process had reserved, its context included.
    pub elsewhere: Option<u64>,
}

/// A running function of the program's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Running {
    /// Its file, or the name of a notebook's cell.
    pub file: String,
    /// The line it is at.
    pub line: u32,
    pub function: String,
    /// The statement at that line, without indentation.
    pub text: String,
    /// Tensors that the statement names, on any device (the innermost frame only).
    pub tensors: Vec<Named>,
}

/// A tensor with the name that a line has for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Named {
    pub name: String,
    pub shape: Vec<u64>,
    /// Its dtype, without `torch.`.
    pub dtype: String,
    /// Its device: `cuda:0`, `cpu`.
    pub device: String,
}

/// Something that holds memory on the card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The outermost name that the program has for it: `history`, `model`, `self.cache`.
    pub name: String,
    /// Where that name lives: `variable` (of a module), `local` (of a running function), `hook`, `closure`, `traceback`,
    /// `output` (IPython's), `module`, `garbage`, `unknown`.
    pub root: String,
    /// What the named thing is: `tensor`, `list`, `dict`, `tuple`, `set`, `deque`, or the class's name.
    pub container: String,
    /// How many things are in it, if it is a container.
    pub length: Option<u64>,
    /// What the tensors are: `tensor`, `parameters`, `buffers`, `gradients`, `optimizer state`.
    pub what: String,
    /// The function whose local it is; empty at a module's level.
    pub function: String,
    /// The file of that function or module.
    pub file: String,
    /// The line that puts things into it (`history.append(x)`, `total += loss`), 0 when not found.
    pub line: u32,
    /// That line's text, without indentation.
    pub text: String,
    /// How that line does it: `append`, `add`, `assign`, `item`, `concatenate`, `hook`.
    pub how: String,
    /// Bytes that its tensors hold, each memory counted once.
    pub bytes: u64,
    /// Its tensors on the card.
    pub tensors: u64,
    /// How many of them carry a graph.
    pub with_graph: u64,
    /// Nodes of the graphs that hang on it and on nothing named before it.
    pub nodes: u64,
    /// How many forwards those graphs are of: how often a typical parameter is used in them.
    pub forwards: u64,
    /// Whether each of those forwards goes on from the one before (recurrence) instead of standing beside it.
    pub chained: bool,
    /// The path of its largest tensor: `history[3].logits`.
    pub path: String,
    /// That tensor's shape.
    pub shape: Vec<u64>,
    /// That tensor's dtype, without `torch.`.
    pub dtype: String,
    /// Other names that lead to the same memory.
    pub also: Vec<String>,
    /// The module that has the same shapes, once or several times over: a `state_dict` that is kept; its name.
    pub copy_of: Option<String>,
    /// The function, registered as a hook of a module, that puts things in; empty if none does.
    pub hook: String,
}

/// A module that no other module holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Module {
    /// The name that the program has for it.
    pub name: String,
    pub class: String,
    /// How many parameters it has on the card.
    pub parameters: u64,
    /// Their bytes, buffers included.
    pub bytes: u64,
    /// Bytes of its gradients.
    pub gradients: u64,
    /// `module.training`.
    pub training: bool,
    /// Whether any of its parameters requires gradients.
    pub requires_grad: bool,
    /// Whether an optimizer has any of its parameters.
    pub optimized: bool,
    /// The dtype of most of its bytes, without `torch.`.
    pub dtype: String,
    /// The file in which `calls` are.
    pub file: String,
    /// Lines of the running functions that call it.
    pub calls: Vec<u32>,
    /// Another module of the list with the same shapes and, by a sample, the same content; its name.
    pub copy_of: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Optimizer {
    /// The name that the program has for it.
    pub name: String,
    pub class: String,
    /// Bytes of its state on the card.
    pub bytes: u64,
    /// Bytes that its parameters have on the card.
    pub parameters: u64,
    /// Whether it works on all tensors at once.
    pub foreach: Option<bool>,
    pub fused: Option<bool>,
}

/// A tensor on the card, or several of one memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tensor {
    pub address: u64,
    /// How long that memory is.
    pub bytes: u64,
    pub shape: Vec<u64>,
    /// Its dtype, without `torch.`.
    pub dtype: String,
    /// Whether it carries a graph.
    pub graph: bool,
    /// Its holder: an index into [`Census::holders`].
    pub holder: Option<u32>,
}

impl Census {
    /// Reads one; `None` if it is none, or longer than any that was taken.
    pub fn parse(json: &[u8]) -> Option<Self> {
        if json.len() > LARGEST_CENSUS {
            return None;
        }
        let mut census: Self = serde_json::from_slice(json).ok()?;
        census.bound();
        Some(census)
    }

    /// Keeps as much as any recorder writes, so that quadratic comparisons end with a hostile file too.
    fn bound(&mut self) {
        self.frames.truncate(128);
        self.holders.truncate(512);
        self.modules.truncate(256);
        self.optimizers.truncate(64);
        self.tensors.truncate(4096);
        for frame in &mut self.frames {
            frame.tensors.truncate(64);
        }
        for module in &mut self.modules {
            module.calls.truncate(256);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_census_is_read_whatever_it_lacks_and_never_larger_than_any_that_is_taken() {
        let census =
            Census::parse(br#"{"holders": [{"name": "history", "length": 412}], "new_key": 1}"#).unwrap();
        assert_eq!((census.holders[0].name.as_str(), census.holders[0].length), ("history", Some(412)));
        assert!(!census.complete && census.card.capability.is_none());
        let many = format!("{{\"tensors\": [{}]}}", vec!["{}"; 100_000].join(","));
        assert_eq!(Census::parse(many.as_bytes()).unwrap().tensors.len(), 4096);
        assert_eq!(Census::parse(b"[1, 2"), None);
        assert_eq!(Census::parse(&vec![b' '; LARGEST_CENSUS + 1]), None);
    }
}
