// What the parts of the extension module share.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "link.h"

namespace byteps {

// A link that a worker or server has not adopted yet.
class LinkHolder {
 public:
  explicit LinkHolder(std::unique_ptr<Link> link) : link_(std::move(link)) {}
  std::unique_ptr<Link> take() {
    if (!link_) throw nanobind::value_error("this link was given away already");
    return std::move(link_);
  }

 private:
  std::unique_ptr<Link> link_;
};

void bind_ucx(nanobind::module_& module);

}  // namespace byteps
