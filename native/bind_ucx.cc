// The part of the extension module that is about UCX.
#include "ucx.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <string>

#include "bind.h"

namespace nb = nanobind;

namespace byteps {

void bind_ucx(nb::module_& module) {
  nb::class_<UcxPort>(module, "UcxPort", "One end of a link through UCX before the other is known.")
      .def("address",
           [](const UcxPort& port) {
             const std::string address = port.address();
             return nb::bytes(address.data(), address.size());
           })
      .def(
          "connect",
          [](UcxPort& port, int lifeline, const nb::bytes& address, double timeout_s) {
            const std::string to(address.c_str(), address.size());
            nb::gil_scoped_release release;
            return std::make_unique<LinkHolder>(port.connect(lifeline, to, timeout_s));
          },
          nb::arg("lifeline"), nb::arg("address"), nb::arg("timeout_s"));
  nb::class_<Ucx>(module, "Ucx", "The library UCX, opened.")
      .def_prop_ro("version", &Ucx::version)
      .def_prop_ro("resources", &Ucx::resources)
      .def("open_port", &Ucx::open_port);
  module.def("ucx_is_built", &ucx_is_built, "Whether this module was built with UCX.");
  module.def("open_ucx", [](bool polling) { return open_ucx({polling, {}}); }, nb::arg("polling"));
}

}  // namespace byteps
