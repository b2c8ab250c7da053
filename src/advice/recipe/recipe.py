# Frees GPU memory that the loaded libraries have cached, and sets `out`. exec() runs this code in a new dictionary,
# after T, COLLECTS, REFERENCES and BUS_IDS were set. The code imports only modules that are loaded or built in,
# initialises no library, reports no values of variables, and does nothing after T.
def _recipe(T, COLLECTS, REFERENCES, BUS_IDS, gc):
    import sys
    import time

    MIB = 1 << 20
    OBJECTS, SECONDS, NAMES = 10000, 1.0, 20
    modules = sys.modules
    did, why, errors = [], [], []
    total = {}  # live, cached
    out = {'late': False, 'live_bytes': None, 'cached_bytes_left': None, 'why': None,
           'did': did, 'errors': errors, 'references': []}

    def late():
        return time.time() > T

    def part(name, work, *arguments):
        if late():
            errors.append(name + ': no time left')
            return None
        try:
            return work(*arguments)
        except KeyboardInterrupt:
            # The interrupt is meant for the program, so pass it on.
            raise
        except BaseException as error:
            # The message can contain the user's data, so report only the type.
            errors.append(name + ': ' + type(error).__name__)
            return None

    def loaded(name):
        # Another thread might still be importing the module.
        module = modules.get(name)
        spec = getattr(module, '__spec__', None)
        return None if module is None or getattr(spec, '_initializing', False) else module

    def add(kind, count):
        if isinstance(count, int) and count >= 0:
            total[kind] = total.get(kind, 0) + count

    def bus_id(text):
        # NVML reports the domain with eight digits, CUDA with four.
        domain, bus, device = text.strip().split('.')[0].split(':')
        return int(domain, 16), int(bus, 16), int(device, 16)

    wanted = set()
    for text in BUS_IDS:
        part('bus id', lambda: wanted.add(bus_id(text)))

    def collect():
        if gc is None:
            why.append("Python's garbage collector is off, and was left off")
            return
        gc.collect()
        gc.collect()
        did.append('gc.collect')

    def torch_stats(cuda):
        stats = []
        for index in range(cuda.device_count()):
            one = cuda.memory_stats(index)
            stats.append([one.get(key + '.all.current', 0) for key in
                          ('allocated_bytes', 'reserved_bytes', 'inactive_split_bytes')])
        return stats

    def torch():
        module = loaded('torch')
        cuda = getattr(module, 'cuda', None)
        if cuda is None or not cuda.is_initialized():
            return
        if getattr(cuda, '_is_in_bad_fork', lambda: False)():
            why.append('PyTorch cannot use CUDA in a forked process')
            return
        if getattr(cuda, 'is_current_stream_capturing', lambda: False)():
            why.append('PyTorch is capturing a CUDA graph')
            return
        before = torch_stats(cuda)

        def workspaces():
            getattr(module._C, '_cuda_clearCublasWorkspaces', lambda: None)()

        def plans():
            caches = getattr(getattr(module.backends, 'cuda', None), 'cufft_plan_cache', None)
            for index, stats in enumerate(before):
                if caches is not None and stats[1]:
                    caches[index].clear()

        part('torch workspaces', workspaces)
        part('torch plans', plans)
        cuda.empty_cache()
        did.append('torch.cuda.empty_cache')
        part('torch ipc', lambda: cuda.ipc_collect())
        split = 0
        # pools() counts memory of cudaMallocAsync.
        backend = getattr(cuda, 'get_allocator_backend', lambda: 'native')()
        for live, reserved, inactive in torch_stats(cuda) if backend == 'native' else ():
            add('live', live)
            add('cached', max(reserved - live, 0))
            split += inactive
        if split >= 16 * MIB:
            why.append('PyTorch keeps %d MiB in blocks that live tensors share' % (split // MIB))

    def cupy():
        module = loaded('cupy')
        runtime = getattr(getattr(module, 'cuda', None), 'runtime', None)
        if runtime is None or not wanted:
            return
        pool = module.get_default_memory_pool()
        for index in range(runtime.getDeviceCount()):
            # Selecting a device that the process does not use would create a context on it.
            if bus_id(runtime.deviceGetPCIBusId(index)) not in wanted:
                continue
            with module.cuda.Device(index):
                pool.free_all_blocks()
                used, held = pool.used_bytes(), pool.total_bytes()
            add('live', used)
            add('cached', max(held - used, 0))
            did.append('cupy pool %d' % index)

    def numba():
        devices = loaded('numba.cuda.cudadrv.devices')
        # `lst` is set once the process has used a device. A query through the API would use a device.
        known = vars(getattr(devices, 'gpus', None) or object).get('lst') or ()
        for manager in known:
            device = getattr(manager, '_device', None)
            if getattr(device, 'primary_context', None) is None:
                continue
            with manager:
                modules['numba'].cuda.current_context().deallocations.clear()
            did.append('numba deallocations')

    def jax():
        module = loaded('jax')
        bridge = loaded('jax._src.xla_bridge')
        if module is None or not getattr(bridge, '_backends', None):
            return
        module.clear_caches()
        did.append('jax.clear_caches')
        kept = 0
        for device in module.local_devices():
            stats = device.memory_stats() if device.platform in ('gpu', 'cuda') else None
            if stats:
                live = stats.get('bytes_in_use', 0)
                add('live', live)
                pool = stats.get('pool_bytes') or stats.get('bytes_reserved') or live
                add('cached', max(pool - live, 0))
                kept += max(pool - live, 0)
        if kept:
            why.append("JAX's allocator keeps its memory until the process exits; "
                       'XLA_PYTHON_CLIENT_ALLOCATOR=platform or =cuda_async returns it')

    def tensorflow():
        module = loaded('tensorflow')
        if module is None:
            return
        if modules['os'].environ.get('TF_GPU_ALLOCATOR') == 'cuda_malloc_async':
            return  # pools() trims the pool.
        keeps = ("TensorFlow's allocator keeps its memory until the process exits, even if all sessions, "
                 'models and graphs are closed; TF_GPU_ALLOCATOR=cuda_malloc_async returns it')
        if str(getattr(module, '__version__', '')).startswith('1.'):
            why.append(keeps.split(';')[0])
            return
        context = getattr(loaded('tensorflow.python.eager.context'), '_context', None)
        if context is None or not getattr(context, '_initialized', False):
            # The memory of a TensorFlow 1 session cannot be read.
            why.append(keeps)
            return
        index = 0
        while index < 64:
            try:
                info = module.config.experimental.get_memory_info('GPU:%d' % index)
            except Exception:
                break
            add('live', info.get('current'))
            index += 1
        if index:
            why.append(keeps)

    def onnxruntime():
        if loaded('onnxruntime') is not None:
            why.append('ONNX Runtime shrinks its arena only if a run requests it '
                       '(memory.enable_memory_arena_shrinkage)')

    def pools():
        # Warp uses the driver's stream-ordered pools. TensorFlow, JAX, RMM and PyTorch use these pools if set to
        # cudaMallocAsync.
        ctypes = loaded('ctypes')
        if ctypes is None or not wanted:
            return
        try:
            # RTLD_NOLOAD: fail unless the library is loaded.
            cuda = ctypes.CDLL('libcuda.so.1', mode=4)
        except OSError:
            return
        count = ctypes.c_int(0)
        # Returns CUDA_ERROR_NOT_INITIALIZED (3) if nothing has initialised CUDA.
        if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return
        for index in range(count.value):
            device, name = ctypes.c_int(0), ctypes.create_string_buffer(64)
            if (cuda.cuDeviceGet(ctypes.byref(device), index) != 0
                    or cuda.cuDeviceGetPCIBusId(name, 64, device) != 0
                    or bus_id(name.value.decode()) not in wanted):
                continue
            flags, active = ctypes.c_uint(0), ctypes.c_int(0)
            if (cuda.cuDevicePrimaryCtxGetState(
                    device, ctypes.byref(flags), ctypes.byref(active)) != 0 or not active.value):
                continue
            seen = set()
            for get in ('cuDeviceGetDefaultMemPool', 'cuDeviceGetMemPool'):
                pool = ctypes.c_void_p(None)
                get = getattr(cuda, get, None)
                if get is None or get(ctypes.byref(pool), device) != 0 or not pool.value:
                    continue
                if pool.value in seen:
                    continue
                seen.add(pool.value)

                def attribute(number):
                    value = ctypes.c_uint64(0)
                    found = cuda.cuMemPoolGetAttribute(pool, number, ctypes.byref(value))
                    return value.value if found == 0 else 0

                # CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT
                if attribute(5) == 0:
                    continue
                cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0))
                held, used = attribute(5), attribute(7)
                add('live', used)
                add('cached', max(held - used, 0))
                did.append('cuMemPoolTrimTo %d' % index)

    def references():
        ends = time.monotonic() + SECONDS
        left = [OBJECTS]
        found, counted, visited = {}, set(), set()
        torch = loaded('torch')
        tensor = getattr(torch, 'Tensor', None)
        arrays = {'cupy': ('ndarray',), 'jax': ('Array',), 'jaxlib': ('Array', 'ArrayImpl'),
                  'tensorflow': ('Variable', 'ResourceVariable', 'EagerTensor'),
                  'numba': ('DeviceNDArray',)}

        def kind(value):
            # Compare classes, so that no user code runs.
            for one in type(value).__mro__:
                module = str(one.__dict__.get('__module__', '')).split('.')[0]
                if one is tensor:
                    return 'torch'
                if one.__name__ in arrays.get(module, ()):
                    return 'tensorflow' if module == 'tensorflow' else module
            return None

        def size(value, of):
            """Returns a key of the storage, which several values can share, and the size on a GPU."""
            if of == 'torch':
                if not value.is_cuda:
                    return None
                # PyTorch 1 has only typed storages.
                untyped = getattr(value, 'untyped_storage', None)
                storage = untyped() if untyped else value.storage()
                return ('torch', str(value.device), storage.data_ptr()), storage.nbytes()
            if of == 'cupy':
                return ('cupy', value.data.mem.ptr), value.data.mem.size
            if of == 'numba':
                return ('numba', value.gpu_data.device_ctypes_pointer.value), value.alloc_size
            if of == 'tensorflow':
                if 'GPU' not in str(value.device):
                    return None
                count = 1
                for length in value.shape:
                    count *= int(length)
                return ('tensorflow', id(value)), count * value.dtype.size
            return ('jax', id(value)), int(value.nbytes)

        def visit(value, depth):
            """Returns the bytes that a value keeps alive and that were not counted before."""
            if left[0] <= 0 or time.monotonic() > ends or id(value) in visited:
                return 0
            left[0] -= 1
            visited.add(id(value))
            plain = type(value)
            if plain in (int, str, bytes, float, bool, type(None)):
                return 0
            of = kind(value)
            if of is not None:
                try:
                    sized = size(value, of)
                except Exception:
                    sized = None
                if sized is None or sized[0] in counted:
                    own = 0
                else:
                    counted.add(sized[0])
                    own = sized[1]
                if of == 'torch':
                    try:
                        own += visit(value.grad, depth) if value.is_leaf else 0
                    except Exception:
                        pass
                return own
            if depth <= 0:
                return 0
            if plain is dict:
                inner = list(value.values())
            elif plain in (list, tuple, set, frozenset):
                inner = list(value)
            elif plain.__module__ == 'builtins' or plain in (type, type(sys)):
                return 0
            else:
                try:
                    inner = list(object.__getattribute__(value, '__dict__').values())
                except Exception:
                    return 0
            return sum(visit(one, depth - 1) for one in inner)

        def note(name, value):
            try:
                size = visit(value, 8)
            except Exception:
                return
            if size > 0:
                found[name] = found.get(name, 0) + size

        space = vars(modules['__main__'])
        ipython = loaded('IPython')
        shell = None if ipython is None else ipython.get_ipython()
        if shell is not None:
            space = shell.user_ns
            # `exit` and similar names refer to the shell, which refers to everything.
            visited.update((id(shell), id(getattr(shell, 'user_module', None))))
        visited.add(id(space))
        names = dict(space)
        for name, value in names.items():
            if isinstance(name, str) and not name.startswith('_') and name not in ('In', 'Out'):
                note(name, value)
        outputs = names.get('Out')
        for number, value in (list(outputs.items()) if type(outputs) is dict else ()):
            note('Out[%s]' % number, value)
        for name in ('_', '__', '___'):
            note(name, names.get(name))
        error = getattr(sys, 'last_exc', None) or getattr(sys, 'last_value', None)
        steps = 0
        trace = getattr(error, '__traceback__', None) or getattr(sys, 'last_traceback', None)
        while trace is not None and steps < 100:
            frame = trace.tb_frame
            # The variables of the notebook's own frame are already listed.
            if frame.f_locals is not frame.f_globals:
                note('last traceback', dict(frame.f_locals))
            trace = trace.tb_next
            steps += 1
        largest = sorted(found.items(), key=lambda one: -one[1])[:NAMES]
        out['references'] = [[name[:200], size] for name, size in largest]

    def guarded_references():
        # Reading a tensor must not run code of a subclass.
        disabled = getattr(getattr(loaded('torch'), '_C', None), 'DisableTorchFunction', None)
        if disabled is None:
            return references()
        with disabled():
            return references()

    if late():
        out['late'] = True
        return out
    if COLLECTS:
        part('gc', collect)
    for work in (torch, cupy, numba, jax, tensorflow, onnxruntime):
        part(work.__name__, work)
    part('pools', pools)
    if REFERENCES:
        part('references', guarded_references)
    if total:
        out['live_bytes'] = total.get('live')
        out['cached_bytes_left'] = total.get('cached')
    if errors:
        why.append('some steps failed: ' + ', '.join(errors[:8]))
    out['why'] = '; '.join(why) or None
    return out


def _without_collector():
    # Disable automatic collection, which the objects of the recipe could trigger.
    from sys import modules
    was_loaded = 'gc' in modules
    import gc
    if not was_loaded:
        del modules['gc']
    if not gc.isenabled():
        return _recipe(T, COLLECTS, REFERENCES, BUS_IDS, None)
    gc.disable()
    try:
        return _recipe(T, COLLECTS, REFERENCES, BUS_IDS, gc)
    finally:
        gc.enable()


out = _without_collector()
