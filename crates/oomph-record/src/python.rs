//! Where in a Python program a thread is, read in place.
//!
//! A thread that is inside a call of C has its frames to itself: nobody else changes them, so they can be read without the
//! interpreter's lock. (The hooks must not wait for that lock: they run under the allocator's, which a thread that
//! has the interpreter's may be waiting for.) Nothing is allocated, no reference is counted.
//!
//! CPython lays out frames differently in each version. [`learn`] knows how, and then holds what it reads against what the
//! interpreter itself says of the frames that are there: if that differs, no lines are recorded.

use crate::elf;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::sync::OnceLock;

/// Frames of a stack that are kept, innermost first.
pub(crate) const DEEPEST: usize = 128;
/// Of these, for the outermost where there are more.
const OUTERMOST: usize = 32;
/// Frames beyond that are not looked at: a recursion without end is one.
const FARTHEST: usize = 4096;
/// Frames that are kept of a free: enough to show what the program was doing, not from where.
pub(crate) const SHALLOW: usize = 16;

/// The file of the code that 3.12 and 3.13 put between C and Python.
const BETWEEN: &str = "<shim>";

type Object = usize;

unsafe extern "C" {
    fn dladdr(address: *const c_void, information: *mut [usize; 4]) -> c_int;
}

struct Layout {
    this_thread: extern "C" fn() -> usize,
    line_of: extern "C" fn(Object, c_int) -> c_int,
    code_type: usize,
    /// Where in the thread's state the innermost frame is, and where in what is found there, if it is not the frame itself.
    innermost: (usize, Option<usize>),
    frame: FrameLayout,
    code: CodeLayout,
}

struct FrameLayout {
    code: usize,
    previous: usize,
    instruction: usize,
    /// Whether the instruction is counted (3.10), not pointed to.
    counted: bool,
    /// Bits of the pointer to the code that are not its own (3.14).
    tags: usize,
}

#[derive(Default)]
struct CodeLayout {
    file: usize,
    name: usize,
    instructions: usize,
    /// Where the text of an ASCII string begins, and that of another.
    ascii: usize,
    wide: usize,
}

static LAYOUT: OnceLock<Option<Layout>> = OnceLock::new();

/// A stack, as addresses: the same program at the same place has the same.
pub(crate) struct Stack {
    /// Of all frames.
    pub(crate) hash: u64,
    /// As many as `length` are there.
    frames: [MaybeUninit<(Object, usize)>; DEEPEST],
    length: usize,
}

/// A frame, in words.
#[derive(Clone)]
pub(crate) struct Frame {
    /// The function.
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}

/// # Safety
/// `address` may be read as a pointer.
unsafe fn word(address: usize) -> usize {
    // SAFETY: as the caller says.
    unsafe { (address as *const usize).read() }
}

/// The calling thread's stack without its `skip` innermost frames, and no more than `most` of them; empty if it is not
/// Python's, or nothing is known of it.
pub(crate) fn walk(skip: usize, most: usize) -> Stack {
    walk_within(skip, most, 0)
}

/// The same, of which the outermost frames are kept too where there are more than can be: the line that imports a large library is further out than that.
#[allow(dead_code)] // `oomph-ram` compiles this file too
pub(crate) fn walk_both_ends() -> Stack {
    walk_within(0, DEEPEST, OUTERMOST)
}

/// `outermost`: how many of the last places are for the last frames that there are.
fn walk_within(skip: usize, most: usize, outermost: usize) -> Stack {
    let mut stack = Stack::empty();
    let Some(Some(layout)) = LAYOUT.get() else { return stack };
    // SAFETY: frames of this thread, as `learn` found them to be laid out.
    unsafe {
        let mut frame = innermost((layout.this_thread)(), layout.innermost);
        let mut left = skip;
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        // Who is further out than so many frames takes turns in the last places.
        let mut turned = 0;
        while frame != 0 && (stack.length < most || turned < FARTHEST && outermost > 0) {
            let (code, instruction) = layout.read(frame);
            frame = word(frame + layout.frame.previous);
            if code == 0 || word(code + 8) != layout.code_type {
                continue;
            }
            if left > 0 {
                left -= 1;
                continue;
            }
            // The file tells apart two functions of which the second lies where the first was.
            let file = word(code + layout.code.file);
            let frame = (code as u64) ^ (instruction as u64).rotate_left(24) ^ (file as u64).rotate_left(48);
            hash = (hash ^ frame).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
            if stack.length < most {
                stack.push((code, instruction));
            } else if let Some(place) = stack.frames.get_mut(most - outermost + turned % outermost) {
                place.write((code, instruction));
                turned += 1;
            }
        }
        if let Some(last) = stack.frames.get_mut(most.saturating_sub(outermost)..most).filter(|_| turned > 0)
        {
            last.rotate_left(turned % outermost);
        }
        if stack.length > 0 {
            stack.hash = hash.max(1);
        }
    }
    stack
}

/// # Safety
/// `thread` is the state of the calling thread, or 0.
unsafe fn innermost(thread: usize, place: (usize, Option<usize>)) -> usize {
    if thread == 0 {
        return 0;
    }
    // SAFETY: as the caller says.
    unsafe {
        match (word(thread + place.0), place.1) {
            (0, _) => 0,
            (frame, None) => frame,
            (holder, Some(offset)) => word(holder + offset),
        }
    }
}

impl Layout {
    /// # Safety
    /// `frame` is a frame of this thread.
    unsafe fn read(&self, frame: usize) -> (Object, usize) {
        // SAFETY: as the caller says.
        unsafe {
            let code = word(frame + self.frame.code) & !self.frame.tags;
            let instruction = match self.frame.counted {
                true => ((frame + self.frame.instruction) as *const i32).read() as usize,
                false => word(frame + self.frame.instruction),
            };
            (code, instruction)
        }
    }

    /// # Safety
    /// The code is alive.
    unsafe fn describe(&self, (code, instruction): (Object, usize)) -> Option<Frame> {
        let at = match self.frame.counted {
            true => instruction.checked_mul(2)?,
            false => instruction.checked_sub(code + self.code.instructions)?,
        };
        // Of frames between C and Python the instruction may be anywhere.
        let at = c_int::try_from(at).ok().filter(|at| *at < 1 << 28)?;
        // SAFETY: the code is alive; the interpreter only reads its table of lines.
        unsafe {
            let line = (self.line_of)(code, at);
            let name = self.text(word(code + self.code.name));
            let file = self.text(word(code + self.code.file));
            if file == BETWEEN {
                return None;
            }
            Some(Frame { name, file, line: u32::try_from(line).unwrap_or(0) })
        }
    }

    /// # Safety
    /// `string` is a string of Python's that is alive.
    unsafe fn text(&self, string: Object) -> String {
        // SAFETY: as the caller says; text does not change. Sizes and bits as in CPython's headers.
        unsafe {
            let length = word(string + 16);
            let state = ((string + 32) as *const u32).read();
            let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
            if !is_compact || length > 4096 {
                return "?".into();
            }
            if is_ascii {
                let bytes = std::slice::from_raw_parts((string + self.code.ascii) as *const u8, length);
                return String::from_utf8_lossy(bytes).into_owned();
            }
            let start = string + self.code.wide;
            let letter = |index: usize| match kind {
                1 => u32::from(((start + index) as *const u8).read()),
                2 => u32::from(((start + 2 * index) as *const u16).read()),
                _ => ((start + 4 * index) as *const u32).read(),
            };
            (0..length).map(|index| char::from_u32(letter(index)).unwrap_or('\u{fffd}')).collect()
        }
    }
}

impl Stack {
    /// Of no thread of Python's.
    pub(crate) fn empty() -> Self {
        Self { hash: 0, frames: [const { MaybeUninit::uninit() }; DEEPEST], length: 0 }
    }

    fn push(&mut self, frame: (Object, usize)) {
        if let Some(place) = self.frames.get_mut(self.length) {
            place.write(frame);
            self.length += 1;
        }
    }

    fn raw(&self) -> &[(Object, usize)] {
        let frames = self.frames.get(..self.length).unwrap_or_default();
        // SAFETY: so many were written, one after another.
        unsafe { std::slice::from_raw_parts(frames.as_ptr().cast(), frames.len()) }
    }

    /// The frames in words. Only while the thread is still where the stack was taken.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let Some(Some(layout)) = LAYOUT.get() else { return Vec::new() };
        // SAFETY: the functions on a thread's stack are alive.
        self.raw().iter().filter_map(|frame| unsafe { layout.describe(*frame) }).collect()
    }
}

/// What the interpreter says about itself.
struct Interpreter {
    this_thread: extern "C" fn() -> usize,
    frame_of: extern "C" fn(usize) -> Object,
    back: extern "C" fn(Object) -> Object,
    code_of: extern "C" fn(Object) -> Object,
    line_of_frame: extern "C" fn(Object) -> c_int,
    line_of: extern "C" fn(Object, c_int) -> c_int,
    attribute: extern "C" fn(Object, *const c_char) -> Object,
    release: extern "C" fn(Object),
    /// Not in 3.10.
    last_instruction: Option<extern "C" fn(Object) -> c_int>,
    code_type: usize,
    minor: u32,
}

impl Interpreter {
    fn find() -> Option<Self> {
        // SAFETY: functions of CPython's with these signatures.
        unsafe {
            Some(Self {
                this_thread: transmute::<usize, extern "C" fn() -> usize>(elf::find(
                    c"PyGILState_GetThisThreadState",
                )?),
                frame_of: transmute::<usize, extern "C" fn(usize) -> Object>(elf::find(
                    c"PyThreadState_GetFrame",
                )?),
                back: transmute::<usize, extern "C" fn(Object) -> Object>(elf::find(c"PyFrame_GetBack")?),
                code_of: transmute::<usize, extern "C" fn(Object) -> Object>(elf::find(c"PyFrame_GetCode")?),
                line_of_frame: transmute::<usize, extern "C" fn(Object) -> c_int>(elf::find(
                    c"PyFrame_GetLineNumber",
                )?),
                line_of: transmute::<usize, extern "C" fn(Object, c_int) -> c_int>(elf::find(
                    c"PyCode_Addr2Line",
                )?),
                attribute: transmute::<usize, extern "C" fn(Object, *const c_char) -> Object>(elf::find(
                    c"PyObject_GetAttrString",
                )?),
                release: transmute::<usize, extern "C" fn(Object)>(elf::find(c"Py_DecRef")?),
                last_instruction: elf::find(c"PyFrame_GetLasti")
                    .map(|found| transmute::<usize, extern "C" fn(Object) -> c_int>(found)),
                code_type: elf::find(c"PyCode_Type")?,
                minor: version()?,
            })
        }
    }

    /// Where in the code its attribute of this name is held.
    fn place_of(&self, code: Object, name: &std::ffi::CStr) -> Option<usize> {
        let value = (self.attribute)(code, name.as_ptr());
        if value == 0 {
            return None;
        }
        // SAFETY: code objects are longer than this in every version.
        let place = (2..22).map(|index| index * 8).find(|offset| unsafe { word(code + offset) } == value);
        (self.release)(value);
        place
    }
}

fn version() -> Option<u32> {
    let text = elf::find(c"Py_GetVersion")?;
    // SAFETY: a function of CPython's that gives a static string.
    let text = unsafe {
        let function = transmute::<usize, extern "C" fn() -> *const c_char>(text);
        std::ffi::CStr::from_ptr(function())
    };
    minor_of(text.to_str().ok()?)
}

/// `3.12.1 (main, ...)` is 12. Without the interpreter's lock (`3.14.0 free-threading build (...)`) every object has another head: none.
fn minor_of(version: &str) -> Option<u32> {
    if version.contains("free-threading") {
        return None;
    }
    version.strip_prefix("3.")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Finds out how frames are laid out. With the interpreter's lock, from within a Python function.
pub(crate) fn learn() -> bool {
    LAYOUT.get_or_init(|| Interpreter::find().and_then(|python| measure(&python))).is_some()
}

fn measure(python: &Interpreter) -> Option<Layout> {
    let frame = match python.minor {
        10 => FrameLayout { code: 32, previous: 24, instruction: 96, counted: true, tags: 0 },
        11 => FrameLayout { code: 32, previous: 48, instruction: 56, counted: false, tags: 0 },
        12 | 13 => FrameLayout { code: 0, previous: 8, instruction: 56, counted: false, tags: 0 },
        14 => FrameLayout { code: 0, previous: 8, instruction: 56, counted: false, tags: 3 },
        _ => return None,
    };
    let thread = (python.this_thread)();
    let object = (thread != 0).then(|| (python.frame_of)(thread)).filter(|object| *object != 0)?;
    // From 3.11 on the frame proper is behind the object that Python programs see.
    // SAFETY: a frame object.
    let top = if frame.counted { object } else { unsafe { word(object + 24) } };
    let code = (python.code_of)(object);
    let mut layout = Layout {
        this_thread: python.this_thread,
        line_of: python.line_of,
        code_type: python.code_type,
        // SAFETY: the thread's state is longer than this in every version.
        innermost: unsafe { find_innermost(thread, top, python.minor) }?,
        frame,
        code: CodeLayout {
            file: python.place_of(code, c"co_filename")?,
            name: python.place_of(code, c"co_name")?,
            instructions: 0,
            ascii: if python.minor < 12 { 48 } else { 40 },
            wide: if python.minor < 12 { 72 } else { 56 },
        },
    };
    if let Some(last_instruction) = python.last_instruction {
        // SAFETY: the frame of `object`, with the lock.
        let (_, instruction) = unsafe { layout.read(top) };
        layout.code.instructions =
            instruction.checked_sub(code)?.checked_sub(last_instruction(object) as usize)?;
    }
    (python.release)(code);
    let right = agrees(python, &layout, object);
    right.then_some(layout)
}

/// # Safety
/// `thread` is a thread's state of this version.
unsafe fn find_innermost(thread: usize, frame: usize, minor: u32) -> Option<(usize, Option<usize>)> {
    // SAFETY: within the thread's state; in 3.11 and 3.12 there is a pointer to what holds the frame.
    unsafe {
        if matches!(minor, 11 | 12) {
            let holder = word(thread + 56);
            let offset = if minor == 11 { 8 } else { 0 };
            return (holder != 0 && word(holder + offset) == frame).then_some((56, Some(offset)));
        }
        (0..20)
            .map(|index| index * 8)
            .find(|offset| word(thread + offset) == frame)
            .map(|place| (place, None))
    }
}

/// Whether what is read is what the interpreter says, for every frame that is there now. Takes over `object`.
fn agrees(python: &Interpreter, layout: &Layout, mut object: Object) -> bool {
    let stack = {
        let mut stack = Stack::empty();
        // SAFETY: this thread's frames; the interpreter holds its lock for us.
        unsafe {
            let mut frame = innermost((layout.this_thread)(), layout.innermost);
            while frame != 0 && stack.length < DEEPEST {
                let (code, instruction) = layout.read(frame);
                frame = word(frame + layout.frame.previous);
                if code == 0 || !is_mapped(code) || word(code + 8) != layout.code_type {
                    continue;
                }
                stack.push((code, instruction));
            }
        }
        stack
    };
    let mut read = stack.raw().iter();
    let mut right = true;
    while object != 0 {
        let code = (python.code_of)(object);
        let line = (python.line_of_frame)(object);
        // Frames between C and Python have no object: they may be passed over here.
        let found = read.find(|frame| frame.0 == code);
        // SAFETY: code that is on the stack.
        let same = found.and_then(|frame| unsafe { layout.describe(*frame) }).is_some_and(|frame| {
            i64::from(frame.line) == i64::from(line.max(0)) && !frame.file.is_empty() && frame.name != "?"
        });
        right &= same || stack.length == DEEPEST;
        (python.release)(code);
        let back = (python.back)(object);
        (python.release)(object);
        object = back;
    }
    right && stack.length > 0
}

/// Whether an address can be read at all: before a layout is trusted. (dladdr is only a hint: heap is in no library.)
fn is_mapped(address: usize) -> bool {
    let mut information = [0usize; 4];
    // SAFETY: dladdr writes four words at most.
    let in_a_library = unsafe { dladdr(address as *const c_void, &raw mut information) } != 0;
    in_a_library || (address > 0x1_0000 && address.is_multiple_of(8) && address < 1 << 47)
}

#[cfg(test)]
mod tests {
    use super::minor_of;

    #[test]
    fn a_python_without_the_lock_is_not_known() {
        assert_eq!(minor_of("3.12.1 (main, Jan  2 2024, 10:00:00) [GCC 12.2.0]"), Some(12));
        assert_eq!(minor_of("3.15.0a3+ (main)"), Some(15));
        assert_eq!(minor_of("3.13.0 experimental free-threading build (main, Oct  7 2024)"), None);
        assert_eq!(minor_of("3.14.0 free-threading build (main, Oct  7 2025)"), None);
        assert_eq!(minor_of("2.7.18 (default)"), None);
    }
}
