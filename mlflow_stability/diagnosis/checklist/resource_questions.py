"""Questions about time, memory and the end of the process."""

from __future__ import annotations

from mlflow_stability.diagnosis.checklist.answers import by_hand, change, found, reported, setting
from mlflow_stability.diagnosis.checklist.check_findings import end, memory
from mlflow_stability.diagnosis.checklist.question import Question

QUESTIONS: dict[str, Question] = {
    "end": Question(
        "How did the process end?",
        "Read the last lines of its output, `dmesg`, and the scheduler's record of the job.",
        end,
    ),
    "memory": Question(
        "Did memory grow?",
        "Log torch.cuda.memory_allocated() every 100 steps; look for losses that are kept with their graph.",
        memory,
    ),
    "memory_share": Question(
        "Is memory nearly full?",
        "Compare torch.cuda.max_memory_reserved() with the device's memory; above 95 % the allocator retries.",
        found("memory_pressure"),
    ),
    "host_memory": Question(
        "Did the memory of the process on the host grow?",
        "Watch the resident size for 1000 steps; look for lists that keep tensors, and for workers that cache samples.",
        change("host_memory", "host memory", rise=1.5),
    ),
    "step_time": Question(
        "Did steps become slower?",
        "Time 100 steps with torch.cuda.synchronize() before each reading of the clock.",
        found("step_time_increase"),
    ),
    "throughput": Question(
        "Did the throughput fall?",
        "Divide samples by seconds over 100 steps at the start and now; compare with a run that was fast.",
        found("throughput_drop"),
    ),
    "data_time": Question(
        "Does the training wait for data?",
        "Train on one batch kept in memory: if that is much faster, raise num_workers and set pin_memory=True.",
        change("data_time", "time for data", rise=2.0),
    ),
    "forward_time": Question(
        "Did the forward pass become slower?",
        "Run torch.profiler for 10 steps; sort by device time; look for an operation that runs on the CPU.",
        change("forward_time", "time for the forward pass", rise=1.5),
    ),
    "backward_time": Question(
        "Did the backward pass become slower?",
        "Profile it; subnormal numbers and gradients near zero slow CPUs: torch.set_flush_denormal(True).",
        change("backward_time", "time for the backward pass", rise=1.5),
    ),
    "optimizer_time": Question(
        "Did the optimizer become slower?",
        "Use fused=True or foreach=True; check that no parameter was added to the optimizer in each epoch.",
        change("optimizer_time", "time for the optimizer", rise=1.5),
    ),
    "mfu": Question(
        "Is the device used well?",
        "Compare model FLOPs per second with the device's peak; below 20 % look for small kernels and waiting.",
        found("low_mfu"),
    ),
    "overhead": Question(
        "Does the recording itself cost much?",
        "Train 200 steps with autolog(disable=True), and compare the step time.",
        change("overhead_fraction", "share of time for recording", rise=2.0),
    ),
    "compiled": Question(
        "Is the model compiled, and not compiled again and again?",
        "Set TORCH_LOGS=recompiles; shapes that change in each step need dynamic=True or padding.",
        setting("compiled|compile|torch_compile", "compilation"),
    ),
    "matmul": Question(
        "Is TF32 allowed for matrix products?",
        "Call torch.set_float32_matmul_precision('high') on Ampere and later, unless fp32 is needed.",
        setting("float32_matmul|tf32|allow_tf32", "precision of matrix products"),
    ),
    "threads": Question(
        "Are there enough threads and workers, and not too many?",
        "Multiply workers by threads: more than the cores slows all; set OMP_NUM_THREADS, try num_workers 4 and 8.",
        setting("threads|num_workers|dataloader_num_workers|workers", "threads and workers"),
    ),
    "devices": Question(
        "Does every rank train on a device of its own?",
        "Print torch.cuda.current_device() by rank and watch nvidia-smi; compare the step time of all ranks.",
        setting("devices|world_size|device|num_gpus|n_gpus", "devices"),
    ),
    "synchronisation": Question(
        "Does the script wait for the device in each step?",
        "Look for .item(), print of tensors and .cpu() in the loop; torch.cuda.set_sync_debug_mode('warn') names them.",
        by_hand,
    ),
    "heat": Question(
        "Is the device throttled, or shared?",
        "Run nvidia-smi -q -d PERFORMANCE: look for thermal or power slowdown, and for other processes.",
        by_hand,
    ),
    "io": Question(
        "Do checkpoints or evaluations take the time?",
        "Mark slow steps and compare with the steps of checkpoints and evaluations; write in a thread.",
        reported("failed checkpoint", "checkpoint_failed"),
    ),
    "stalls": Question(
        "Did the training stall?",
        "Run py-spy dump --pid PID while it waits; compare all ranks.",
        reported("stall", "stall"),
    ),
    "accumulation": Question(
        "Could micro-batches be smaller?",
        "Halve the micro-batch and double the accumulation: the gradient stays, the activations are halved.",
        setting("accumulation|gradient_accumulation_steps|accumulate_grad_batches", "gradient accumulation"),
    ),
    "checkpointing": Question(
        "Are activations recomputed instead of kept?",
        "Wrap blocks in torch.utils.checkpoint.checkpoint(use_reentrant=False): a third more time, far less memory.",
        setting("gradient_checkpointing|activation_checkpointing|checkpointing", "activation checkpointing"),
    ),
    "optimizer_memory": Question(
        "How much does the optimizer's state take?",
        "Adam keeps two numbers a parameter, 8 bytes in fp32; use fewer ranks' copies (FSDP) or an 8-bit optimizer.",
        setting("optimizer|parameters_total|optim", "the optimizer"),
    ),
    "graph": Question(
        "Is a graph kept from step to step?",
        "Look for total += loss without .item(), and lists of outputs: each keeps the whole graph of its step.",
        by_hand,
    ),
    "no_grad": Question(
        "Is validation run without gradients?",
        "Wrap it in torch.no_grad() or torch.inference_mode(); compare the peak memory of both loops.",
        by_hand,
    ),
    "fragmentation": Question(
        "Is memory fragmented?",
        "Compare memory_reserved with memory_allocated; set PYTORCH_ALLOC_CONF=expandable_segments:True.",
        by_hand,
    ),
    "lengths": Question(
        "Are there batches of unusual length?",
        "Log the largest sequence or image of each batch; cut or bucket by length; warm up with the largest one.",
        reported("unusual batch", "broken_batch", "batch_discarded"),
    ),
}
"""By key."""
