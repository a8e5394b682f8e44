//! The protocol: lists the tools, calls them, and sends what came of it.

use crate::{Answer, Effect, Going, Tool, Toolbox};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, InitializeResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ToolAnnotations,
};
use rmcp::service::{RequestContext, ServerInitializeError};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use std::io;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Semaphore, oneshot};

/// Calls that run at the same time: a prediction takes minutes, and an explanation must not wait for it. The others wait: each may
/// take as much memory as a recording.
const AT_ONCE: usize = 2;
/// How often whoever waits is told what is done.
const OFTEN: Duration = Duration::from_secs(1);
/// How long what was cancelled may take to end.
const PATIENCE: Duration = Duration::from_secs(8);

/// As the main thread's, on which verbs run otherwise.
const STACK: usize = 8 << 20;

struct Server<T> {
    toolbox: Arc<T>,
    tools: Vec<rmcp::model::Tool>,
    /// The names of those that run a program.
    running: Vec<&'static str>,
    version: String,
    seats: Arc<Semaphore>,
    /// From their start to their end, be they cancelled or not.
    under_way: Arc<Mutex<Vec<Going>>>,
    /// Held by each call that has a program: those are waited for at the end.
    alive: Sender<()>,
}

pub(crate) async fn serve(
    toolbox: impl Toolbox,
    version: &str,
    mut ended: UnboundedReceiver<()>,
    alive: Sender<()>,
) -> io::Result<()> {
    let tools = toolbox.tools();
    let running = tools.iter().filter(|tool| tool.effect == Effect::Runs).map(|tool| tool.name).collect();
    let tools = tools.into_iter().map(listed).collect();
    let under_way = Arc::new(Mutex::new(Vec::new()));
    let server = Server {
        toolbox: Arc::new(toolbox),
        tools,
        running,
        version: version.to_owned(),
        seats: Arc::new(Semaphore::new(AT_ONCE)),
        under_way: Arc::clone(&under_way),
        alive,
    };
    let served = async {
        match server.serve((tokio::io::stdin(), tokio::io::stdout())).await {
            Ok(running) => running.waiting().await.map(|_| ()).map_err(io::Error::other),
            // Whoever started it has gone again.
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(io::Error::other(error)),
        }
    };
    let outcome = tokio::select! {
        outcome = served => outcome,
        _ = ended.recv() => Ok(()),
    };
    // Nobody waits for these any more, and nothing that was started may outlive the server.
    locked(&under_way).iter().for_each(Going::cancel);
    outcome
}

fn locked(calls: &Mutex<Vec<Going>>) -> MutexGuard<'_, Vec<Going>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the calls that were cancelled at the end: what they started ends before this process.
pub(crate) fn wait_for(all_gone: &Receiver<()>) {
    // Nobody sends anything: it is over when the last of them is gone.
    let _ = all_gone.recv_timeout(PATIENCE);
}

fn listed(tool: Tool) -> rmcp::model::Tool {
    let reads = tool.effect == Effect::Reads;
    let hints = ToolAnnotations::from_raw(
        Some(tool.title.clone()),
        Some(reads),
        // Of a program that is run nothing better can be said.
        Some(!reads),
        Some(reads),
        Some(!reads),
    );
    rmcp::model::Tool::new(tool.name, tool.description, Arc::new(tool.input))
        .with_title(tool.title)
        .with_raw_output_schema(Arc::new(tool.output))
        .with_annotations(hints)
}

fn failed(why: String) -> CallToolResponse {
    CallToolResult::error(vec![ContentBlock::text(why)]).into()
}

fn answered(answer: Answer) -> CallToolResponse {
    let mut result = CallToolResult::success(answer.text.into_iter().map(ContentBlock::text).collect());
    result.structured_content = Some(answer.document);
    result.into()
}

impl<T: Toolbox> Server<T> {
    /// Starts a call once there is a seat for it; what comes of it comes through the channel.
    async fn start(
        &self,
        request: CallToolRequestParams,
        going: &Going,
    ) -> io::Result<oneshot::Receiver<Result<Answer, String>>> {
        let seat = Arc::clone(&self.seats).acquire_owned().await.map_err(io::Error::other)?;
        let (sender, receiver) = oneshot::channel();
        let (toolbox, under_way) = (Arc::clone(&self.toolbox), Arc::clone(&self.under_way));
        let alive = self.running.contains(&&*request.name).then(|| self.alive.clone());
        let own = going.clone();
        locked(&under_way).push(going.clone());
        std::thread::Builder::new().name(request.name.to_string()).stack_size(STACK).spawn(move || {
            // Where it panics, too: the seat is free again then, and nobody waits for it.
            let _held = (seat, alive);
            let arguments = request.arguments.unwrap_or_default();
            let outcome = toolbox.call(&request.name, arguments, &own);
            locked(&under_way).retain(|other| !other.is(&own));
            let _ = sender.send(outcome);
        })?;
        Ok(receiver)
    }

    async fn result(&self, request: CallToolRequestParams, going: &Going) -> CallToolResponse {
        let name = request.name.clone();
        match self.start(request, going).await {
            Err(error) => failed(format!("{name}: cannot be started: {error}")),
            Ok(receiver) => match receiver.await {
                Ok(Ok(answer)) => answered(answer),
                Ok(Err(why)) => failed(why),
                // What it said is on stderr.
                Err(_) => failed(format!("{name}: this is a defect of oomph; report it with what it took")),
            },
        }
    }
}

impl<T: Toolbox> ServerHandler for Server<T> {
    fn get_info(&self) -> InitializeResult {
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("oomph", self.version.clone()))
            .with_instructions(self.toolbox.instructions())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.clone()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !self.tools.iter().any(|tool| tool.name == request.name) {
            let all: Vec<&str> = self.tools.iter().map(|tool| &*tool.name).collect();
            let why = format!("there is no tool {:?}, only {}", request.name, all.join(", "));
            return Err(ErrorData::invalid_params(why, None));
        }
        let going = Going::default();
        let began = Instant::now();
        let mut result = std::pin::pin!(self.result(request, &going));
        let mut clock = tokio::time::interval_at((began + OFTEN).into(), OFTEN);
        loop {
            tokio::select! {
                outcome = &mut result => return Ok(outcome),
                () = context.ct.cancelled() => {
                    going.cancel();
                    return Ok(failed("cancelled".to_owned()));
                }
                _ = clock.tick() => {
                    if let Some(token) = context.meta.get_progress_token() {
                        let mut progress = ProgressNotificationParam::new(token, began.elapsed().as_secs_f64());
                        progress.message = Some(going.doing()).filter(|doing| !doing.is_empty());
                        let _ = context.peer.notify_progress(progress).await;
                    }
                }
            }
        }
    }
}
