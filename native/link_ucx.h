// A link over UCX messages. See ucx.h for how one comes about.
#pragma once

#include <memory>

#include "link.h"
#include "ucx_messages.h"

namespace byteps {

// Takes the connected socket as the lifeline.
std::unique_ptr<Link> make_ucx_link(std::unique_ptr<UcxMessages> messages, int lifeline);

}  // namespace byteps
