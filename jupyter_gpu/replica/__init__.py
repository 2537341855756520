"""What stands beside the user's process: it starts it, watches it, passes signals on and tells how it ended.

These modules run in any image with Python 3.10 or newer and start on the standard library alone. They are zipped as
``jupyter_gpu_replica`` (`jupyter_gpu.backends.sending`), sent along, and never installed; they import nothing of
``jupyter_gpu``. A replica is started as ``python -S -E replica.zip`` with its specification, a JSON object, in the variable
``JUPYTER_GPU_REPLICA``: the object itself, or the path of a file that holds it.

Specification (keys marked * may be absent or null):

===================== ==========================================================================================
protocol              1
id, attempt, rank     which Workload this is part of
kind                  kernel, batch, training or service
command               program and arguments; a kernel's holds ``{connection_file}``
variables             environment variables; with ``clean`` they are the whole environment, else they are added
clean *               whether the environment starts empty (a local place)
cwd *                 where the program starts; it is made if it does not exist
devices *             ids of its devices; absent: what the device plugin set (NVIDIA_VISIBLE_DEVICES...)
visible_variable      the variable that makes devices visible, set to the ids joined by commas, as JUPYTER_GPU_DEVICES is
ports                 {name: number, or path of a Unix socket}; given to the program as JUPYTER_GPU_PORT_<NAME>
loopback *            names of the ports that listen on 127.0.0.1 although they have numbers
secrets *             folder with a file per secret, or a JSON file with all of them (a kernel's keys)
run_folder            private folder for the connection file and sockets; made 0700, removed at the end
grace_s               seconds from TERM to KILL
memory_bytes *        its memory, all its processes together; told in reasons, and kept to as ``memory_limits`` says
memory_limits *       how a local place keeps a program to that: auto, scope, watch or off (`limits`); absent: the container does
sample_s *            seconds between two samples of what it uses, 5 when absent
start_timeout_s *     a kernel's: seconds until it must listen, else it ends as ``start.timeout``
max_runtime_s *       seconds until it is ended as ``end.max_runtime``
max_runtime_in_all_s *  the limit that this is the rest of, after earlier attempts; told in the reason
relaunch_within_s *   a kernel's: seconds its device is kept for a relaunch after it died
orphan_running_after_s *  a kernel's: seconds without a client until it ends as ``end.orphaned``
folder *              a local place's: the attempt's folder, see below; in a pod absent
zmq_path *            entries for sys.path where pyzmq is; absent: the interpreter's own site-packages
after *               command to start, detached, when all is over (a local place's Keeper), and
after_if *            only if this path exists then (the local place keeps it while something is QUEUED), and
after_unless_locked * not if somebody holds the ``flock`` of this file (there is a Keeper, which sees that we have ended), with
after_variables *     these variables; absent: PATH, HOME, LANG and where temporary files and sockets go, of the program's own
===================== ==========================================================================================

A local place's **attempt folder** (0700, made by the backend) holds:

- ``lock``: the backend opens it, takes ``flock(LOCK_EX)``, and hands the descriptor to the runner as file descriptor number
  ``JUPYTER_GPU_LOCK_FD``. The runner keeps it for life and no child of it has it: it alone tells whether the runner lives.
- ``replica.json``: the specification (0600).
- ``state.json``: written by the runner, replaced whole: ``{"pid", "started", "program": {"pid"}}``.
- ``log``: what the program said, in the CRI log format: ``<RFC 3339 time> stdout|stderr F|P <text>``; reports stand in stdout.
- ``stop.json``: written by the backend before it sends TERM to the runner: ``{"code", "message", "grace_s"}``, the reason why;
  and again if one that had to yield is to end for good: it has no more time by that, perhaps less.
- ``usage.json``: what was used so far, replaced whole at every ``sample`` report and at the end: ``measured_device_s`` (devices
  times seconds in which their use was measured), ``idle_device_s`` (the part of them below 1 % busy), ``cpu_s``,
  ``peak_memory_bytes``.
- ``end.json``: the end report, the runner's last act before it exits; absent when it was killed, or when there was no room for
  some seconds (its space, ``end.json.new``, is taken when the program starts).

In a pod the program has the container's own stdout and stderr, reports are lines there, and the end report is also written
into ``/dev/termination-log`` (at most 4 KiB), with the content of ``usage.json`` as its fact ``usage``.

Reports are lines ``\\x1e{json}``; in a pod's log, half a line that the program printed just before may stand in front. The key
``report`` names the type:

- ``started``: ``devices`` (list of ids), ``node``, ``pid``.
- ``kernel``: a kernel died and its parent waits for a relaunch: ``code``, ``message``, ``exit_code`` or ``signal``, ``facts``.
- ``sample``: what it used since the last: ``cpu`` (cores, mean), ``memory_bytes`` (the most), ``gpus``: of each device that
  NVIDIA's driver knows ``id``, ``utilization`` (0 to 1, mean; null for a MIG slice), ``memory_bytes`` (the most; or null). The
  first comes after 5 seconds, then one each 30, and a last one before the end.
- ``end``: ``code`` (of a Reason), ``message``, ``exit_code`` (int or null), ``signal`` (name or null), ``facts``, with
  ``peak_memory_bytes`` among them. ``end.out_of_memory`` has ``limit_bytes`` too, or ``machine_bytes`` where it was the machine
  that had no more.

The **parent channel** of a kernel is a ZeroMQ ROUTER on port ``parent``, with the kernel's Curve keys if it has some. A message
is two frames: a JSON object, and the HMAC-SHA256 of that frame under the kernel's key, as lower-case hex. Requests have ``op``
and ``n``, and are answered by the same ``n`` with ``ok`` and either ``error`` or the state; ``{"event": "kernel"}`` with the
state is sent to every client that has spoken when the kernel changes. The requests are:

- ``hello``: say that this client is there, and ask for the state;
- ``spawn`` (``command`` *, ``variables`` *): start the kernel again in place, ending one that still runs;
- ``signal`` (``signum``): to the kernel's process group;
- ``end``: end the kernel and the Workload; answered when the kernel is gone.

State: ``protocol``, ``id``, ``attempt``, ``node``, ``devices``, and ``kernel``: ``start`` (1, 2, ...: how often it was started),
``state`` (``starting``; ``running``: it listens; ``exited``), ``pid``, ``exit_code`` (negative: minus the signal's number);
``cause`` *: ``code``, ``message`` and ``facts`` of why it died, if that was nobody's wish; ``stopping`` *: ``code`` and
``message`` of why the Workload is ending, told as soon as that is known, and ``ends_in_s`` *: seconds until the kernel is killed.

A kernel that has to yield (``stop.json`` with ``end.preempted``) is left alone for its grace period, so that what it has in
memory can be saved: TERM, which ends ipykernel at once, comes 2 seconds (at most a quarter of it) before the end of it. In a pod,
where nobody says why it gets TERM, that holds for every TERM, if a client has spoken within 25 seconds; a client that knows that
the end is somebody's wish sends ``signal`` 15.
"""
