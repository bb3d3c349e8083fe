// The extension module `byteps._native`. Only this file and bind_*.cc see Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "bind.h"
#include "link.h"
#include "node.h"
#include "reduce.h"
#include "schedule.h"
#include "server.h"
#include "worker.h"

namespace nb = nanobind;

namespace {

using byteps::LinkHolder;

// A contiguous buffer of any Python object that offers one, held while this lives.
class HeldBuffer {
 public:
  HeldBuffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
      throw nb::python_error();
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  ~HeldBuffer() { PyBuffer_Release(&view_); }

  void* data() const { return view_.buf; }
  size_t nbytes() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

template <class Enum>
Enum checked_enum(int value, size_t count, const char* what) {
  if (value < 0 || static_cast<size_t>(value) >= count)
    throw nb::value_error((std::string("unknown ") + what + " " + std::to_string(value)).c_str());
  return static_cast<Enum>(value);
}

using Contributions = std::vector<std::unique_ptr<HeldBuffer>>;

Contributions held_contributions(const nb::list& objects, const HeldBuffer& out, size_t itemsize) {
  if (objects.size() == 0) throw nb::value_error("reduce needs at least one contribution");
  if (out.nbytes() % itemsize != 0) throw nb::value_error("the output is not a whole number of elements");
  Contributions held;
  for (nb::handle object : objects) {
    held.push_back(std::make_unique<HeldBuffer>(object, false));
    if (held.back()->nbytes() != out.nbytes())
      throw nb::value_error("a contribution and the output differ in size");
  }
  return held;
}

void reduce(int dtype_number, int op_number, const nb::list& contributions, nb::handle out, double prescale,
            double postscale, uint32_t divisor) {
  const auto dtype = checked_enum<byteps::DType>(dtype_number, byteps::kDTypes, "dtype");
  const auto op = checked_enum<byteps::Op>(op_number, byteps::kOps, "operation");
  if (divisor == 0) throw nb::value_error("the divisor is zero");
  const HeldBuffer result(out, true);
  const auto inputs = held_contributions(contributions, result, byteps::wire_size(dtype));

  nb::gil_scoped_release release;
  const size_t n = result.nbytes() / byteps::wire_size(dtype);
  const auto accumulator = std::make_unique_for_overwrite<char[]>(n * byteps::accumulator_size(dtype, op));
  byteps::widen(dtype, op, accumulator.get(), inputs.front()->data(), n, prescale);
  for (size_t i = 1; i < inputs.size(); ++i)
    byteps::accumulate(dtype, op, accumulator.get(), inputs[i]->data(), n, prescale);
  byteps::finish(dtype, op, result.data(), accumulator.get(), n, postscale, divisor);
}

byteps::Lane::Options lane_options(int policy, uint64_t credit_bytes, double heartbeat_s, uint32_t epoch,
                                   uint32_t event_capacity) {
  byteps::Lane::Options options;
  options.policy = checked_enum<byteps::Policy>(policy, 3, "scheduling policy");
  options.credit_bytes = credit_bytes;
  options.heartbeat_s = heartbeat_s;
  options.epoch = epoch;
  options.event_capacity = event_capacity;
  return options;
}

std::byte* pointer(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

// One look without releasing the GIL; then without it, until resolved, timed out, or a signal handler raised.
bool wait(const byteps::Transfer& transfer, double timeout_s) {
  using Wake = byteps::Transfer::Wake;
  if (transfer.status() != byteps::Status::pending) return true;
  const auto deadline = byteps::Clock::now() + std::chrono::duration<double>(timeout_s);
  while (true) {
    Wake wake;
    {
      nb::gil_scoped_release release;
      const double left = std::chrono::duration<double>(deadline - byteps::Clock::now()).count();
      wake = transfer.wait(left);
    }
    if (wake != Wake::interrupted) return wake == Wake::resolved;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

using PartTuple = std::tuple<uint32_t, uint32_t, uint64_t>;  // server, lane, bytes

// dtype, op, prescale, postscale, divisor, whether the sum goes on to a server, places, first owner, members
using PlanTuple = std::tuple<int, int, double, double, uint32_t, bool, std::vector<uint32_t>, uint32_t,
                             std::vector<uint32_t>>;

byteps::Arithmetic arithmetic_of(int dtype, int op, double prescale, double postscale) {
  return {checked_enum<byteps::DType>(dtype, byteps::kDTypes, "dtype"),
          checked_enum<byteps::Op>(op, byteps::kOps, "operation"), prescale, postscale};
}

void declare(byteps::Worker& worker, uint32_t tensor, const std::vector<PartTuple>& parts,
             const std::optional<PlanTuple>& plan) {
  std::vector<byteps::PartRef> refs;
  uint64_t offset = 0;
  for (const auto& [server, lane, bytes] : parts) {
    refs.push_back({static_cast<uint32_t>(refs.size()), server, lane, offset, bytes});
    offset += bytes;
  }
  std::shared_ptr<byteps::NodePlan> node;
  if (plan) {
    const auto& [dtype, op, prescale, postscale, divisor, pushes, places, first, members] = *plan;
    node = std::make_shared<byteps::NodePlan>(byteps::NodePlan{arithmetic_of(dtype, op, prescale, postscale),
                                                               divisor, pushes, places, first, members});
  }
  worker.declare(tensor, std::move(refs), std::move(node));
}

// index, lane, bytes, owners
using PartitionTuple = std::tuple<uint32_t, uint32_t, uint64_t, std::vector<uint32_t>>;
// id, dtype, op, prescale, postscale, partitions, members, divisor
using TensorTuple = std::tuple<uint32_t, int, int, double, double, std::vector<PartitionTuple>,
                               std::vector<uint32_t>, uint32_t>;

void install(byteps::Server& server, const std::vector<TensorTuple>& tensors) {
  std::vector<byteps::TensorSpec> specs;
  for (const auto& [id, dtype, op, prescale, postscale, partitions, members, divisor] : tensors) {
    byteps::TensorSpec spec;
    spec.id = id;
    spec.arithmetic = arithmetic_of(dtype, op, prescale, postscale);
    for (const auto& [index, lane, bytes, owners] : partitions)
      spec.partitions.push_back({index, lane, bytes, owners});
    spec.members = members;
    spec.divisor = divisor;
    specs.push_back(std::move(spec));
  }
  nb::gil_scoped_release release;
  server.install(specs);
}

std::vector<std::pair<uint32_t, double>> missing(byteps::Server& server, uint32_t tensor) {
  std::vector<std::pair<uint32_t, double>> result;
  nb::gil_scoped_release release;
  for (const auto& entry : server.missing(tensor)) result.emplace_back(entry.rank, entry.heard_s);
  return result;
}

void join_node(byteps::Worker& worker, uint32_t place, std::vector<uint32_t> ranks,
               const std::vector<int>& segments, uint32_t lanes, size_t piece_bytes, uint32_t first) {
  worker.join_node(std::make_shared<byteps::Node>(place, std::move(ranks), segments, lanes, piece_bytes),
                   first);
}

std::vector<uint32_t> missing_neighbours(byteps::Worker& worker, uint32_t tensor) {
  const auto ranks = (nb::gil_scoped_release(), worker.missing(tensor));
  return {ranks.begin(), ranks.end()};
}

using OpenTuple = std::tuple<uint32_t, uint32_t, uint32_t, uint64_t, std::vector<uint32_t>>;

std::vector<OpenTuple> open_rounds(byteps::Server& server) {
  std::vector<OpenTuple> result;
  nb::gil_scoped_release release;
  for (const auto& one : server.open_rounds())
    result.emplace_back(one.tensor, one.partition, one.round, one.bytes, one.missing);
  return result;
}

// The events as bytes, and how many were dropped.
template <class Owner>
nb::tuple take_events(Owner& owner) {
  std::vector<byteps::Event> events;
  const uint64_t dropped = (nb::gil_scoped_release(), owner.take_events(events));
  return nb::make_tuple(nb::bytes(events.data(), events.size() * sizeof(byteps::Event)), dropped);
}

// What the operating system refused becomes an OSError.
template <class Call>
auto as_os_error(const Call& call) {
  try {
    return call();
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
}

void bind_links(nb::module_& module) {
  nb::class_<LinkHolder>(module, "Link", "A connection to one peer that nobody has adopted yet.");
  module.def(
      "socket_link", [](int fd) { return LinkHolder(byteps::make_socket_link(fd)); }, nb::arg("fd"),
      "Adopt a connected stream socket, authenticated by the caller. The link closes it.");
  module.def(
      "create_shared_memory",
      [](size_t ring_bytes) {
        return as_os_error([&] {
          const auto shared = byteps::create_shared_memory(ring_bytes);
          std::vector<int> descriptors(shared.events.begin(), shared.events.end());
          descriptors.insert(descriptors.begin(), shared.memory);
          return descriptors;
        });
      },
      nb::arg("ring_bytes"), "Descriptors of memory for two processes: the memory, and four events.");
  nb::class_<byteps::SumMemory>(module, "SumMemory", "Memory of a server's sums that others may read.")
      .def("descriptor", &byteps::SumMemory::fd);
  module.def(
      "shared_memory_link",
      [](const std::vector<int>& descriptors, bool is_first, int lifeline,
         std::shared_ptr<byteps::SumMemory> sums) {
        byteps::SharedMemory shared{-1, {}, -1};
        const size_t count = 1 + shared.events.size();
        if (descriptors.size() != count && descriptors.size() != count + 1)
          throw nb::value_error("shared memory has five descriptors, or six");
        shared.memory = descriptors[0];
        std::copy_n(descriptors.begin() + 1, shared.events.size(), shared.events.begin());
        if (descriptors.size() > count) shared.sums = descriptors[count];
        const auto make = [&] { return byteps::make_shared_memory_link(shared, is_first, lifeline, sums); };
        return LinkHolder(as_os_error(make));
      },
      nb::arg("descriptors"), nb::arg("is_first"), nb::arg("lifeline"), nb::arg("sums") = nb::none(),
      "Adopt one end of shared memory and a connection to the other end, all authenticated by the caller.");
  module.def(
      "inproc_links",
      [](size_t capacity_bytes) {
        auto [first, second] = byteps::make_inproc_links(capacity_bytes);
        return nb::make_tuple(LinkHolder(std::move(first)), LinkHolder(std::move(second)));
      },
      nb::arg("capacity_bytes") = 256 * 1024, "Two connected links within this process.");
}

void bind_worker(nb::module_& module) {
  nb::class_<byteps::Transfer>(module, "Transfer", "One round of one tensor.")
      .def("poll", [](const byteps::Transfer& t) { return t.status() != byteps::Status::pending; })
      .def("wait", &wait, nb::arg("timeout_s"))
      .def_prop_ro("status", [](const byteps::Transfer& t) { return static_cast<int>(t.status()); })
      .def_prop_ro("peer", &byteps::Transfer::peer)
      .def_ro("tensor", &byteps::Transfer::tensor)
      .def_ro("round", &byteps::Transfer::round)
      .def_prop_ro("unresolved", &byteps::Transfer::unresolved);

  using byteps::Worker;
  nb::class_<Worker>(module, "Worker", "The data plane of one worker.")
      .def(
          "__init__",
          [](Worker* self, uint32_t rank, uint32_t lanes, int policy, uint64_t credit_bytes,
             double heartbeat_s, uint32_t epoch, double peer_timeout_s, uint32_t event_capacity,
             uint32_t busy_servers) {
            auto lane = lane_options(policy, credit_bytes, heartbeat_s, epoch, event_capacity);
            lane.peer_timeout_s = peer_timeout_s;
            new (self) Worker({rank, lanes, lane, busy_servers});
          },
          nb::arg("rank"), nb::arg("lanes"), nb::kw_only(), nb::arg("policy"), nb::arg("credit_bytes"),
          nb::arg("heartbeat_s"), nb::arg("epoch"), nb::arg("peer_timeout_s") = 0.0,
          nb::arg("event_capacity") = 0, nb::arg("busy_servers") = 1)
      .def("add_link", [](Worker& w, uint32_t server, uint32_t lane,
                          LinkHolder& link) { w.add_link(server, lane, link.take()); })
      .def("add_beacon", [](Worker& w, LinkHolder& link) { w.add_beacon(link.take()); })
      .def("start", &Worker::start)
      .def("join_node", &join_node, nb::arg("place"), nb::arg("ranks"), nb::arg("segments"), nb::arg("lanes"),
           nb::arg("piece_bytes"), nb::arg("first_neighbour"))
      .def("add_neighbour", [](Worker& w, uint32_t place, uint32_t lane,
                               LinkHolder& link) { w.add_neighbour(place, lane, link.take()); })
      .def("depart", &Worker::depart, nb::arg("rank"))
      .def("missing", &missing_neighbours, nb::arg("tensor"))
      .def("declare", &declare, nb::arg("tensor"), nb::arg("parts"), nb::arg("plan") = nb::none())
      .def("forget", &Worker::forget, nb::arg("tensor"))
      .def(
          "submit",
          [](Worker& w, uint32_t tensor, uintptr_t source, uintptr_t destination, int32_t priority) {
            return w.submit(tensor, pointer(source), pointer(destination), priority);
          },
          nb::arg("tensor"), nb::arg("source"), nb::arg("destination"), nb::arg("priority"))
      .def("retract", &Worker::retract, nb::arg("tensor"))
      .def("fail",
           [](Worker& w, int status, uint32_t peer) { w.fail(static_cast<byteps::Status>(status), peer); })
      .def("set_credit", &Worker::set_credit, nb::arg("credit_bytes"))
      .def("set_chunk", &Worker::set_chunk, nb::arg("chunk_bytes"))
      .def("close", &Worker::close, nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &Worker::abandon)
      .def("in_flight", &Worker::in_flight)
      .def("take_events", &take_events<Worker>)
      .def_prop_ro("bytes_sent", &Worker::bytes_sent)
      .def_prop_ro("bytes_received", &Worker::bytes_received)
      .def_prop_ro("frames_sent", &Worker::frames_sent)
      .def_prop_ro("bytes_per_second", &Worker::bytes_per_second);
}

void bind_server(nb::module_& module) {
  using byteps::Server;
  nb::class_<Server>(module, "Server", "The data plane of one server.")
      .def(
          "__init__",
          [](Server* self, uint32_t workers, uint32_t lanes, bool deterministic, double heartbeat_s,
             uint32_t epoch, uint32_t event_capacity) {
            const auto lane = lane_options(0, UINT64_MAX, heartbeat_s, epoch, event_capacity);
            new (self) Server({workers, lanes, deterministic, lane});
          },
          nb::arg("workers"), nb::arg("lanes"), nb::kw_only(), nb::arg("deterministic"),
          nb::arg("heartbeat_s"), nb::arg("epoch"), nb::arg("event_capacity") = 0)
      .def("add_link", [](Server& s, uint32_t rank, uint32_t lane,
                          LinkHolder& link) { s.add_link(rank, lane, link.take()); })
      .def("add_beacon", [](Server& s, LinkHolder& link) { s.add_beacon(link.take()); })
      .def("sum_memory", [](Server& s, uint32_t n) { return as_os_error([&] { return s.sum_memory(n); }); })
      .def("start", &Server::start)
      .def("install", &install, nb::arg("tensors"))
      .def("retire", &Server::retire, nb::arg("tensors"), nb::call_guard<nb::gil_scoped_release>())
      .def("depart", &Server::depart, nb::arg("rank"))
      .def("missing", &missing, nb::arg("tensor"))
      .def("open_rounds", &open_rounds)
      .def("take_events", &take_events<Server>)
      .def("close", &Server::close, nb::arg("drain_s"), nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &Server::abandon)
      .def_prop_ro("bytes_sent", &Server::bytes_sent)
      .def_prop_ro("bytes_received", &Server::bytes_received);
}

void bind_scheduler(nb::module_& module) {
  using byteps::Scheduler;
  nb::class_<Scheduler>(module, "Scheduler",
                        "Decides which bytes leave next. No clock, no thread, no socket.")
      .def(
          "__init__",
          [](Scheduler* self, int policy, uint64_t credit_bytes) {
            new (self) Scheduler(checked_enum<byteps::Policy>(policy, 3, "scheduling policy"), credit_bytes);
          },
          nb::arg("policy"), nb::arg("credit_bytes"))
      .def(
          "submit",
          [](Scheduler& s, uint64_t id, int32_t priority, uint32_t link, uint64_t send_bytes,
             uint64_t credit_bytes) { s.submit({id, priority, link, send_bytes, credit_bytes}); },
          nb::arg("id"), nb::arg("priority"), nb::arg("link"), nb::arg("send_bytes"), nb::arg("credit_bytes"))
      .def(
          "next",
          [](Scheduler& s, uint64_t chunk_bytes, const nb::bytearray& busy) -> nb::object {
            const auto* bytes = static_cast<const char*>(busy.data());
            const auto can_send = [&](uint32_t link) { return link >= busy.size() || bytes[link] == 0; };
            const auto grant = s.next(chunk_bytes, can_send);
            if (!grant) return nb::none();
            return nb::make_tuple(grant->id, grant->link, grant->offset, grant->bytes, grant->last);
          },
          nb::arg("chunk_bytes"), nb::arg("busy") = nb::bytearray())
      .def("finish", &Scheduler::finish, nb::arg("id"))
      .def("park", &Scheduler::park, nb::arg("id"))
      .def("drop_link", &Scheduler::drop_link, nb::arg("link"))
      .def("set_credit", &Scheduler::set_credit, nb::arg("credit_bytes"))
      .def_prop_ro("in_flight_bytes", &Scheduler::in_flight_bytes)
      .def("__len__", &Scheduler::size);
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Native part of byteps.";
  nb::set_leak_warnings(false);  // sessions that a script never shut down end with the process
  bind_links(module);
  byteps::bind_ucx(module);
  bind_worker(module);
  bind_server(module);
  bind_scheduler(module);

  module.def("instruction_set", &byteps::instruction_set,
             "What sums here: \"avx512\", \"avx2\" or \"baseline\".");
  module.def("reduce", &reduce, nb::arg("dtype"), nb::arg("op"), nb::arg("contributions"), nb::arg("out"),
             nb::kw_only(), nb::arg("prescale") = 1.0, nb::arg("postscale") = 1.0, nb::arg("divisor") = 1,
             "Reduce equally long contiguous buffers into `out`, as a server would.");
}
