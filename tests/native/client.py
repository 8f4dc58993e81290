"""A CUDA program, by ctypes: what tests run inside a container. A function is looked up in one of three ways."""

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

MIB = 1 << 20
PR_SET_PDEATHSIG, SIGKILL = 1, 9
prctl = ctypes.CDLL(None).prctl
prctl(PR_SET_PDEATHSIG, SIGKILL)  # a killed test leaves nobody behind
OK, INVALID, OUT_OF_MEMORY, NO_DEVICE, NOT_FOUND = 0, 1, 2, 100, 500
DLSYM, PROC, PER_THREAD = "dlsym", "proc", "per-thread"


class Location(Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProp(Structure):
    _fields_ = (
        ("type", c_int), ("handles", c_int), ("location", Location), ("meta", c_void_p), ("flags", c_uint64),
    )  # fmt: skip


class PoolProps(Structure):
    _fields_ = (
        ("type", c_int), ("handles", c_int), ("location", Location), ("meta", c_void_p), ("most", c_size_t),
        ("reserved", ctypes.c_char * 56),
    )  # fmt: skip


class Array3D(Structure):
    _fields_ = (
        ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int), ("channels", c_uint),
        ("flags", c_uint),
    )  # fmt: skip


class Array2D(Structure):
    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class AllocNode(Structure):
    _fields_ = (
        ("pool", PoolProps), ("access", c_void_p), ("count", c_size_t), ("bytes", c_size_t), ("pointer", c_uint64),
    )  # fmt: skip


class NodeParams(Structure):
    _fields_ = (
        ("type", c_int), ("reserved", c_int * 3), ("alloc", AllocNode),
        ("rest", ctypes.c_char * (232 - ctypes.sizeof(AllocNode))), ("last", c_uint64),
    )  # fmt: skip


class ArrayMapping(Structure):
    _fields_ = (
        ("type", c_int), ("array", c_void_p), ("part", c_int), ("where", c_uint64 * 4), ("operation", c_int),
        ("kind", c_int), ("handle", c_uint64), ("offset", c_uint64), ("rest", c_uint * 4),
    )  # fmt: skip


class External(Structure):
    _fields_ = (
        ("type", c_int), ("handle", c_uint64 * 2), ("bytes", c_uint64), ("flags", c_uint), ("reserved", c_uint * 16),
    )  # fmt: skip


class Cuda:
    """The driver, its functions found the ``how`` way; a context on ``device`` is current unless that is None."""

    def __init__(self, how: str = DLSYM, device: int | None = 0, version: int = 13000) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.how, self.version = how, version
        if device is not None:
            assert self("cuInit", 0) == OK
            self.use(device)

    def use(self, device: int) -> None:
        context = c_void_p()
        result = self("cuDevicePrimaryCtxRetain", byref(context), device)
        assert result == OK, result
        assert self("cuCtxSetCurrent", context) == OK

    def find(self, name: str) -> Any:
        """Return a function by its name without suffix; raises AttributeError if there is none."""
        if self.how == DLSYM:
            newest = {
                "cuMemAlloc": "_v2", "cuMemFree": "_v2", "cuMemGetInfo": "_v2", "cuDeviceTotalMem": "_v2",
                "cuMemAllocPitch": "_v2", "cuArrayCreate": "_v2", "cuArray3DCreate": "_v2", "cuCtxDestroy": "_v2",
                "cuStreamBeginCapture": "_v2", "cuCtxCreate": "_v2", "cuGraphAddNode": "_v2", "cuCtxPopCurrent": "_v2",
                "cuDevicePrimaryCtxRelease": "_v2", "cuDevicePrimaryCtxReset": "_v2",
            }  # fmt: skip
            return getattr(
                self.library,
                {"cuGraphInstantiate": "cuGraphInstantiateWithFlags"}.get(name, name + newest.get(name, "")),
            )
        pointer, status = c_void_p(), c_int()
        flags = c_uint64(2 if self.how == PER_THREAD else 0)
        result = self.library.cuGetProcAddress_v2(
            name.encode(), byref(pointer), c_int(self.version), flags, byref(status)
        )
        if result != OK or not pointer.value:
            raise AttributeError(f"{name}: {result}, status {status.value}")
        return ctypes.CFUNCTYPE(c_int)(pointer.value)

    def __call__(self, name: str, *arguments: Any) -> int:
        function = self.find(name)
        function.argtypes = None
        result: int = function(*(c_size_t(a) if isinstance(a, int) else a for a in arguments))
        return result

    def info(self) -> tuple[int, int]:
        """Return what is free and what there is, in MiB."""
        available, total = c_size_t(), c_size_t()
        assert self("cuMemGetInfo", byref(available), byref(total)) == OK
        return available.value // MIB, total.value // MIB

    def total(self, device: int = 0) -> int:
        total = c_size_t()
        assert self("cuDeviceTotalMem", byref(total), device) == OK
        return total.value // MIB

    # -- every way to memory: take `mib`, return CUDA's answer; what was taken is in `last`

    last: Any = None

    def linear(self, mib: int) -> int:
        self.last = c_uint64()
        return self("cuMemAlloc", byref(self.last), mib * MIB)

    def free_linear(self) -> int:
        return self("cuMemFree", self.last)

    def managed(self, mib: int) -> int:
        self.last = c_uint64()
        return self("cuMemAllocManaged", byref(self.last), mib * MIB, 1)

    def pitch(self, mib: int) -> int:
        self.last, pitch = c_uint64(), c_size_t()
        return self("cuMemAllocPitch", byref(self.last), byref(pitch), 1000, mib * 1024, 4)

    def array(self, mib: int) -> int:
        self.last = c_void_p()
        return self("cuArrayCreate", byref(self.last), byref(Array2D(1024, mib * 64, 0x20, 4)))

    def array_3d(self, mib: int) -> int:
        self.last = c_void_p()
        return self("cuArray3DCreate", byref(self.last), byref(Array3D(1024, 256, mib, 0x20, 1, 0)))

    def free_array(self) -> int:
        return self("cuArrayDestroy", self.last)

    def mipmap(self, mib: int) -> int:
        self.last = c_void_p()
        return self("cuMipmappedArrayCreate", byref(self.last), byref(Array3D(1024, mib * 192, 0, 0x20, 1, 0)), 8)

    def free_mipmap(self) -> int:
        return self("cuMipmappedArrayDestroy", self.last)

    def stream(self) -> c_void_p:
        stream = c_void_p()
        assert self("cuStreamCreate", byref(stream), 0) == OK
        return stream

    def pooled(self, mib: int) -> int:
        self.last = c_uint64()
        return self("cuMemAllocAsync", byref(self.last), mib * MIB, None)

    def from_pool(self, mib: int) -> int:
        if not hasattr(self, "pool"):
            self.pool = c_void_p()
            assert self("cuMemPoolCreate", byref(self.pool), byref(PoolProps(1, 0, Location(1, 0)))) == OK
        self.last = c_uint64()
        return self("cuMemAllocFromPoolAsync", byref(self.last), mib * MIB, self.pool, None)

    def free_pooled(self) -> int:
        result = self("cuMemFreeAsync", self.last, None)
        if hasattr(self, "pool"):
            self("cuMemPoolTrimTo", self.pool, 0)
        self("cuStreamSynchronize", None)
        return result

    def physical(self, mib: int) -> int:
        self.last = c_uint64()
        return self("cuMemCreate", byref(self.last), mib * MIB, byref(AllocationProp(1, 0, Location(1, 0))), 0)

    def free_physical(self) -> int:
        return self("cuMemRelease", self.last)

    def external(self, mib: int) -> int:
        self.last = c_void_p()
        return self("cuImportExternalMemory", byref(self.last), byref(External(1, (c_uint64 * 2)(), mib * MIB)))

    def free_external(self) -> int:
        return self("cuDestroyExternalMemory", self.last)

    def heap(self, mib: int) -> int:
        return self("cuCtxSetLimit", 2, mib * MIB)

    def free_heap(self) -> int:
        return self("cuCtxSetLimit", 2, 0)

    def launched(self, graph: c_void_p) -> int:
        self.last = c_void_p()
        assert self("cuGraphInstantiate", byref(self.last), graph, 0) == OK
        return self("cuGraphLaunch", self.last, None)

    def _graph(self, child: bool = False, generic: bool = False, mib: int = 0) -> c_void_p:
        graph, node = c_void_p(), c_void_p()
        assert self("cuGraphCreate", byref(graph), 0) == OK
        asked = AllocNode(PoolProps(1, 0, Location(1, 0)), None, 0, mib * MIB, 0)
        if generic:
            params = NodeParams(10, (c_int * 3)(), asked)
            assert self("cuGraphAddNode", byref(node), graph, None, None, 0, byref(params)) == OK
            pointer = params.alloc.pointer
        else:
            assert self("cuGraphAddMemAllocNode", byref(node), graph, None, 0, byref(asked)) == OK
            pointer = asked.pointer
        assert self("cuGraphAddMemFreeNode", byref(node), graph, None, 0, c_uint64(pointer)) == OK
        if child:
            outer = c_void_p()
            assert self("cuGraphCreate", byref(outer), 0) == OK
            assert self("cuGraphAddChildGraphNode", byref(node), outer, None, 0, graph) == OK
            return outer
        return graph

    def graph(self, mib: int) -> int:
        return self.launched(self._graph(mib=mib))

    def graph_node(self, mib: int) -> int:
        return self.launched(self._graph(mib=mib, generic=True))

    def child_graph(self, mib: int) -> int:
        return self.launched(self._graph(mib=mib, child=True))

    def captured(self, mib: int) -> int:
        stream, graph, pointer = self.stream(), c_void_p(), c_uint64()
        assert self("cuStreamBeginCapture", stream, 0) == OK
        assert self("cuMemAllocAsync", byref(pointer), mib * MIB, stream) == OK
        assert self("cuStreamEndCapture", stream, byref(graph)) == OK
        node = c_void_p()
        assert self("cuGraphAddMemFreeNode", byref(node), graph, None, 0, pointer) == OK
        return self.launched(graph)

    def free_graph(self) -> int:
        self("cuCtxSynchronize")
        return self("cuDeviceGraphMemTrim", 0)


__all__ = [
    "DLSYM", "INVALID", "MIB", "NOT_FOUND", "NO_DEVICE", "OK", "OUT_OF_MEMORY", "PER_THREAD", "POINTER", "PROC",
    "PR_SET_PDEATHSIG", "AllocNode", "AllocationProp", "Array3D", "ArrayMapping", "Cuda", "Location", "PoolProps",
    "byref", "c_char_p", "c_int", "c_size_t", "c_uint", "c_uint64", "c_void_p", "ctypes", "prctl",
]  # fmt: skip
