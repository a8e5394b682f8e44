//! From stacks to places a person knows.
//!
//! A stack is mostly library: what a user can change is the innermost line of their own. This module folds the
//! library away, and reads off a stack what the program was doing ([`Phase`]).

use hashbrown::HashMap;
use oomph_trace::{Action, CALLER, FORWARD_FOLLOWS, Frame, FrameId, NATIVE, NO_STACK, Recording, StackId};
use oomph_words::is_library_file;

/// What the program was doing when it allocated, as far as the stack shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// No stack. In a recording that has stacks this is autograd's own thread, so the backward pass.
    NoStack,
    /// Building a model, moving it to the device, or loading weights.
    Setup,
    /// A data loader.
    Data,
    /// Inside the call of a module.
    Forward,
    /// Forward again, inside the backward pass: checkpointing.
    Recompute,
    /// The backward pass, seen from Python or by its C++ frames.
    Backward,
    /// An optimizer making its state.
    OptimizerState,
    /// An optimizer otherwise.
    Optimizer,
    /// Gradients being dropped or cleared.
    ZeroGrad,
    /// The program's own lines, outside of any module.
    User,
}

/// What is known of one stack.
#[derive(Clone, Debug)]
pub(crate) struct StackFacts {
    /// The program's own innermost line; without one, the innermost Python line.
    pub(crate) place: Option<FrameId>,
    /// Whether `place` is the program's own.
    pub(crate) own: bool,
    /// The innermost Python frame, library or not; of a library that is built on PyTorch, its own line rather than PyTorch's.
    pub(crate) innermost: Option<FrameId>,
    pub(crate) phase: Phase,
    /// A library's scratch memory, by the names of its C++ frames.
    pub(crate) native_workspace: bool,
    /// Inside `torch.cuda.empty_cache`.
    pub(crate) empty_cache: bool,
    /// Inside an optimizer that works on all tensors at once.
    pub(crate) multi_tensor: bool,
    /// Inside a loss over classes: cross entropy, log-softmax.
    pub(crate) class_loss: bool,
    /// Innermost in a convolution or a recurrent layer, whose scratch memory comes and goes.
    pub(crate) convolution: bool,
    /// Innermost in PyTorch's linear layer.
    pub(crate) linear: bool,
    /// Innermost in what can be a matrix product, where cuBLAS may take its workspace.
    pub(crate) product: bool,
    /// Inside a function that trains.
    pub(crate) training: bool,
    /// Inside the making of an object of the program's own classes.
    pub(crate) model_init: bool,
    /// Inside a deep copy.
    pub(crate) copied: bool,
    /// Inside PyTorch's data parallelism.
    pub(crate) parallel: bool,
    /// The line that calls the outermost module: where a forward pass begins.
    pub(crate) site: Option<FrameId>,
    /// The program's own line at or above `site`.
    pub(crate) own_site: Option<FrameId>,
    /// Inside `torch.load` or its like.
    pub(crate) loaded: bool,
    /// Inside attention that is written out: a function, class or file of that name.
    pub(crate) attention: bool,
    /// Inside generation or a cache of keys and values.
    pub(crate) cache: bool,
    /// Names the stack's Python frames: equal for stacks that differ in C++ frames only.
    pub(crate) python: u32,
}

/// Who runs the training loop, as far as a recording's frames show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TrainingLoop {
    Own,
    Accelerate,
    /// The Trainer of transformers.
    Trainer,
    Lightning,
    /// Something that shards the model: FSDP, DeepSpeed.
    Sharded,
    /// `oomph.fit`.
    Fit,
}

impl TrainingLoop {
    /// What the file of a frame speaks of.
    fn of_file(file: &str) -> Option<Self> {
        let has = |part: &str| file.contains(part);
        Some(match () {
            () if has("oomph/fitting/") => Self::Fit,
            () if has("torch/distributed/fsdp/") || has("/_composable/fsdp/") || has("/deepspeed/") => {
                Self::Sharded
            }
            () if has("/lightning/pytorch/") || has("/pytorch_lightning/") => Self::Lightning,
            () if has("transformers/trainer.py") => Self::Trainer,
            () if has("accelerate/accelerator.py") => Self::Accelerate,
            () => return None,
        })
    }
}

/// The facts of every stack of a recording.
pub(crate) struct Sources {
    facts: Vec<StackFacts>,
    /// Whether a frame is of the program's own files: a name may be long, so it is looked at once.
    own: Vec<bool>,
    /// Whether allocations have stacks, so that one without is autograd's.
    pub(crate) has_stacks: bool,
    /// Who runs the training loop. Of several that are seen, the one that decides what `oomph.fit` can do.
    pub(crate) training_loop: TrainingLoop,
    /// Whether batches are normalised over their samples: parts of them would be other batches.
    pub(crate) batch_norm: bool,
}

impl Sources {
    /// Looks at every stack once.
    pub(crate) fn of(recording: &Recording) -> Self {
        let frames: Vec<FrameFacts> =
            recording.stacks.frames().iter().map(|frame| FrameFacts::of(recording, frame)).collect();
        let mut seen: HashMap<Vec<FrameId>, u32> = HashMap::new();
        let facts = (0..recording.stacks.len() as StackId)
            .map(|stack| {
                let stack = recording.stacks.get(stack);
                let python: Vec<FrameId> = stack
                    .iter()
                    .copied()
                    .filter(|&id| !frames.get(id as usize).is_some_and(|frame| frame.native))
                    .collect();
                let next = seen.len() as u32;
                StackFacts { python: *seen.entry(python).or_insert(next), ..StackFacts::of(stack, &frames) }
            })
            .collect();
        let has_stacks = (recording.devices.iter()).any(|device| {
            let events = &device.events;
            (events.action.iter().zip(&events.stack))
                .any(|(&action, &stack)| action == Action::Alloc && stack != NO_STACK)
        });
        let (mut training_loop, mut batch_norm) = (TrainingLoop::Own, false);
        for frame in recording.stacks.frames() {
            let file = recording.strings.get(frame.file).replace('\\', "/");
            training_loop = training_loop.max(TrainingLoop::of_file(&file).unwrap_or(TrainingLoop::Own));
            batch_norm |= file.contains("torch/nn/modules/batchnorm.py");
        }
        let own = frames.iter().map(|frame| frame.own).collect();
        Self { facts, own, has_stacks, training_loop, batch_norm }
    }

    /// The facts of a stack.
    pub(crate) fn of_stack(&self, stack: StackId) -> &StackFacts {
        self.facts.get(stack as usize).unwrap_or(&self.facts[NO_STACK as usize])
    }

    /// Whether a frame is of the program's own files.
    pub(crate) fn is_own(&self, frame: FrameId) -> bool {
        self.own.get(frame as usize).copied().unwrap_or(false)
    }

    /// Whether any stack of the recording is of this sort.
    pub(crate) fn any(&self, test: impl Fn(&StackFacts) -> bool) -> bool {
        self.facts.iter().any(test)
    }

    /// Whether two stacks are the same call, as far as Python sees.
    pub(crate) fn same_call(&self, a: StackId, b: StackId) -> bool {
        self.of_stack(a).python == self.of_stack(b).python
    }

    /// What the program was doing.
    pub(crate) fn phase(&self, stack: StackId) -> Phase {
        self.of_stack(stack).phase
    }
}

/// Whether a frame is C++ rather than Python.
pub(crate) fn is_native(recording: &Recording, frame: &Frame) -> bool {
    let (name, file) = (recording.strings.get(frame.name), recording.strings.get(frame.file));
    is_native_frame(name, file)
}

/// Whether a frame is the call of a module.
pub(crate) fn is_module_call(recording: &Recording, frame: &Frame) -> bool {
    MODULE_CALLS.contains(&recording.strings.get(frame.name))
}

/// Functions in which frameworks and people train.
const TRAINING_LOOPS: [&str; 6] =
    ["training_step", "_inner_training_loop", "train_step", "train_one_epoch", "train_epoch", "train_batch"];

/// transformers 5 loads weights in threads of its own, where no frame says `from_pretrained`.
const LOADING_THREADS: &str = "transformers/core_model_loading.py";

/// The functions through which `torch.nn.Module` calls `forward`.
const MODULE_CALLS: [&str; 3] = ["_call_impl", "_wrapped_call_impl", "_lazy_forward"];

fn is_native_frame(name: &str, file: &str) -> bool {
    const ENDINGS: [&str; 8] = [".cpp", ".cc", ".cu", ".h", ".hpp", ".c", ".cuh", ".so"];
    matches!(file, "" | "??" | "none")
        || name == CALLER
        || name.starts_with(NATIVE)
        || ENDINGS.iter().any(|ending| file.ends_with(ending))
        || name.contains("::")
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether a name speaks of attention that writes its scores out; `scaled_dot_product_attention` does not.
fn is_attention(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    (name.contains("attention") || name.contains("attn")) && !name.contains("sdpa") && !name.contains("flash")
}

#[derive(Clone, Copy, Default)]
struct FrameFacts {
    native: bool,
    own: bool,
    steps: bool,
    torch: bool,
    module_call: bool,
    optimizer: bool,
    optimizer_state: bool,
    zero_grad: bool,
    setup: bool,
    data: bool,
    backward: bool,
    function_apply: bool,
    training: bool,
    model_init: bool,
    copied: bool,
    parallel: bool,
    checkpoint: bool,
    workspace: bool,
    empty_cache: bool,
    multi_tensor: bool,
    class_loss: bool,
    convolution: bool,
    linear: bool,
    product: bool,
    loaded: bool,
    attention: bool,
    cache: bool,
}

impl FrameFacts {
    fn of(recording: &Recording, frame: &Frame) -> Self {
        let name = recording.strings.get(frame.name);
        let file = recording.strings.get(frame.file);
        if file == FORWARD_FOLLOWS {
            return Self { native: true, backward: true, ..Self::default() };
        }
        if is_native_frame(name, file) {
            return Self {
                native: true,
                backward: name.contains("autograd::Engine")
                    || name.contains("autograd::python::PythonEngine"),
                workspace: name.contains("Workspace") || name.contains("allocateCUBLAS"),
                ..Self::default()
            };
        }
        let unified = file.replace('\\', "/");
        let has = |part: &str| unified.contains(part);
        // What oomph itself puts into a program is none of its own lines.
        let library = is_library_file(file) || has("/_oomph_live/");
        // Optimizers live in torch.optim and in libraries of their own; they share the method's name.
        let optimizer = library
            && (has("/torch/optim/")
                || has("torch/optim/")
                || ((has("/bitsandbytes/optim")
                    || has("/apex/optim")
                    || has("/torchao/optim")
                    || has("optimizer"))
                    && (name == "step" || name.contains("update") || name.contains("init"))));
        Self {
            native: false,
            own: !library,
            steps: name == "step" || name == "update",
            torch: library
                && (has("/torch/")
                    || unified.starts_with("torch/")
                    || has("/lib/python3") && !has("site-packages")),
            module_call: MODULE_CALLS.contains(&name),
            optimizer,
            optimizer_state: optimizer && name.contains("init") && name != "__init__",
            zero_grad: name == "zero_grad" || name == "_zero_grad_common",
            setup: (has("torch/nn/modules/") && matches!(name, "_apply" | "convert" | "reset_parameters"))
                || (has("torch/nn/modules/") && name == "__init__")
                || name == "flatten_parameters"
                || (library
                    && (name.contains("load_state_dict")
                        || name == "from_pretrained"
                        || name == "set_module_tensor_to_device"
                        || has(LOADING_THREADS)
                        || has("/safetensors/"))),
            data: has("torch/utils/data/") || has("/torchdata/") || name == "pin_memory",
            backward: (has("torch/autograd/")
                && (name == "backward" || name == "grad" || name == "_make_grads"))
                || (has("torch/_tensor.py") && name == "backward"),
            function_apply: has("torch/autograd/function.py") && name == "apply",
            training: TRAINING_LOOPS.contains(&name),
            model_init: !library && name == "__init__",
            copied: name == "__deepcopy__" || name == "deepcopy" || name == "_deepcopy_dict",
            parallel: has("torch/nn/parallel/"),
            checkpoint: has("torch/utils/checkpoint.py")
                && (name.contains("unpack_hook") || name.contains("recompute") || name == "backward"),
            workspace: false,
            empty_cache: name == "empty_cache",
            multi_tensor: optimizer && name.starts_with("_multi_tensor"),
            class_loss: matches!(name, "cross_entropy" | "log_softmax" | "nll_loss")
                || name.contains("cross_entropy")
                || name == "ForCausalLMLoss",
            loaded: library
                && ((has("torch/serialization.py") && (name == "load" || name == "_load"))
                    || has(LOADING_THREADS)
                    || has("/safetensors/")),
            attention: is_attention(name) || (library && is_attention(file_name(&unified))),
            cache: library && (file_name(&unified) == "cache_utils.py" || has("/generation/"))
                || name.contains("kv_cache")
                || name.contains("past_key"),
            convolution: (has("torch/nn/modules/conv.py") || has("torch/nn/modules/rnn.py"))
                && !matches!(name, "flatten_parameters" | "_apply" | "__init__"),
            linear: has("torch/nn/modules/linear.py"),
            product: !library
                || has("torch/nn/modules/linear.py")
                || has("torch/nn/modules/rnn.py")
                || has("transformers/pytorch_utils.py")
                || ["linear", "attention", "projection", "matmul", "bmm", "mm", "einsum"]
                    .iter()
                    .any(|word| name == *word || (word.len() > 5 && name.contains(word))),
        }
    }
}

impl StackFacts {
    fn of(stack: &[FrameId], frames: &[FrameFacts]) -> Self {
        let fact = |id: &FrameId| frames.get(*id as usize).copied().unwrap_or_default();
        let any = |test: fn(&FrameFacts) -> bool| stack.iter().any(|id| test(&fact(id)));
        let python = || stack.iter().copied().filter(|id| !fact(id).native);
        let own = python().find(|id| fact(id).own);
        let innermost = python().next();
        let library = python().take_while(|id| !fact(id).own).find(|id| !fact(id).torch).or(innermost);
        // A custom function's backward runs in autograd's own thread, whose outermost frame is its `apply`; its
        // forward has the same frame, called from the program.
        let outermost = python().next_back();
        let in_backward = any(|f| f.backward) || outermost.is_some_and(|id| fact(&id).function_apply);
        let known_phase = |f: FrameFacts| {
            Some(if f.zero_grad {
                Phase::ZeroGrad
            } else if f.optimizer_state {
                Phase::OptimizerState
            } else if f.optimizer {
                Phase::Optimizer
            } else if f.backward {
                Phase::Backward
            } else if f.setup {
                Phase::Setup
            } else if f.data {
                Phase::Data
            } else if f.module_call {
                Phase::Forward
            } else {
                return None;
            })
        };
        let (mut site, mut own_site, mut called) = (None, None, false);
        for id in stack.iter().rev().copied().filter(|id| !fact(id).native) {
            if fact(&id).module_call {
                called = true;
                break;
            }
            site = Some(id);
            own_site = if fact(&id).own { Some(id) } else { own_site };
        }
        let site = site.filter(|_| called);
        let phase = if python().next().is_none() && !in_backward {
            // C++ frames without Python around them: a thread of autograd's whose engine frame was
            // not unwound.
            Phase::NoStack
        } else if any(|f| f.checkpoint) {
            Phase::Recompute
        } else {
            // The innermost frame with a known phase decides: an optimizer may call the whole step as a closure, in which the program's own
            // lines are not the optimizer's.
            let mut in_closure = false;
            let known = stack.iter().find_map(|id| {
                let frame = fact(id);
                in_closure |= frame.own && !frame.steps;
                known_phase(frame).filter(|phase| !(in_closure && matches!(phase, Phase::Optimizer)))
            });
            match known {
                Some(phase) => phase,
                None if in_backward => Phase::Backward,
                None => Phase::User,
            }
        };
        Self {
            place: own.or(innermost),
            own: own.is_some(),
            innermost: library,
            phase,
            native_workspace: any(|f| f.workspace),
            empty_cache: any(|f| f.empty_cache),
            multi_tensor: any(|f| f.multi_tensor),
            class_loss: any(|f| f.class_loss),
            convolution: innermost.is_some_and(|id| fact(&id).convolution),
            linear: innermost.is_some_and(|id| fact(&id).linear),
            product: innermost.is_none_or(|id| fact(&id).product),
            training: any(|f| f.training),
            model_init: any(|f| f.model_init),
            copied: any(|f| f.copied),
            parallel: any(|f| f.parallel),
            site,
            own_site,
            loaded: any(|f| f.loaded),
            attention: any(|f| f.attention),
            cache: any(|f| f.cache),
            python: 0, // numbered when all are known
        }
    }
}
