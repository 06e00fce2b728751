#include <nanobind/nanobind.h>

#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bindings.h"
#include "parallel.h"

namespace nb = nanobind;

namespace octavo {

void bind_parallel(nb::module_& m) {
    nb::class_<ThreadPool>(m, "ThreadPool", "Compute threads, shared by everything one back end runs.")
        .def(
            "__init__",
            [](ThreadPool* self, int num_threads) {
                if (num_threads < 0 || num_threads > 1024)
                    throw std::invalid_argument("num_threads = " + std::to_string(num_threads) +
                                                ": must be from 1 to 1024, or 0 for what the machine allows");
                new (self) ThreadPool(num_threads);
            },
            nb::arg("num_threads") = 0, "0: as many as the CPU affinity and the cgroup quota allow.")
        .def_prop_ro("size", &ThreadPool::size, "Threads, the calling one included.")
        .def("stop", &ThreadPool::stop, nb::call_guard<nb::gil_scoped_release>(),
             "End the workers; later loops run on the calling thread alone.");
    m.def(
        "usable_cpus", &usable_cpus, nb::arg("cgroup_root") = "/sys/fs/cgroup",
        nb::arg("memberships") = "/proc/self/cgroup",
        "Threads that the CPU affinity and the quotas of the cgroup (v2 or v1) and those above it allow, at least 1.");
}

}  // namespace octavo
