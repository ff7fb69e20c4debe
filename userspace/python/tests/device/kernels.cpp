// The tests' device as one of torch's: the kernels that copy, and the host's for all others.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#ifndef PLAYED_TORCH_1
#include <ATen/detail/PrivateUse1HooksInterface.h>
#endif
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstring>

#include "streams.hpp"

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(KIND, 0);

struct Allocator final : c10::Allocator {
    static void release(void *address) { played::release(address); }
#ifdef PLAYED_TORCH_1
    c10::DataPtr allocate(size_t length) const override
#else
    c10::DataPtr allocate(size_t length) override
#endif
    {
        void *address = length ? played::allocate(length) : nullptr;
        return {address, address, &release, DEVICE};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void *to, const void *from, std::size_t length) const
#ifndef PLAYED_TORCH_1
        override
#endif
    {
        auto *target = played::reached(to, length);
        auto *source = played::reached(const_cast<void *>(from), length);
        played::copy([=] { memcpy(target, source, length); }, true);
    }
};
Allocator allocator;
REGISTER_ALLOCATOR(KIND, &allocator);

// Torch's view of devices and streams; events are pointers to played::EventRef.
struct Guard final : c10::impl::DeviceGuardImplInterface {
    static c10::Stream stream(played::Id id) { return c10::Stream(c10::Stream::UNSAFE, DEVICE, id); }
    static played::EventRef &of(void *event) { return *static_cast<played::EventRef *>(event); }

    c10::DeviceType type() const override { return KIND; }
    c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
    c10::Device getDevice() const override { return DEVICE; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    c10::Stream getStream(c10::Device) const noexcept override { return stream(played::current_stream()); }
    c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
    c10::Stream getNewStream(c10::Device, int = 0) const { return stream(played::new_stream()); }
    c10::Stream getStreamFromGlobalPool(c10::Device, bool = false) const override {
        return stream(played::new_stream());
    }
    c10::Stream exchangeStream(c10::Stream next) const noexcept override {
        return stream(played::use_stream(next.id()));
    }
    void record(
        void **event, const c10::Stream &at, const c10::DeviceIndex, const c10::EventFlag
    ) const override {
        destroyEvent(*event, 0);
        *event = new played::EventRef(played::record(at.id()));
    }
    void block(void *event, const c10::Stream &in) const override {
        if (event != nullptr)
            played::wait_in(in.id(), of(event));
    }
    bool queryEvent(void *event) const override { return event == nullptr || played::has_come(*of(event)); }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override {
        delete static_cast<played::EventRef *>(event);
    }
    void synchronizeEvent(void *event) const {
        if (event != nullptr)
            played::wait_for(*of(event));
    }
    bool queryStream(const c10::Stream &) const override { return false; }
    void synchronizeStream(const c10::Stream &at) const override {
        played::wait_for(*played::record(at.id()));
    }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

#ifdef PLAYED_TORCH_1
using c10::optional;
#else
using std::optional;

// Has torch's autograd use this device's streams.
struct Hooks final : at::PrivateUse1HooksInterface {
    // No override: the interface of torch 2.6 lacks these two.
    bool isBuilt() const { return true; }
    bool isAvailable() const { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    void init() const override {}
};
const bool has_hooks = [] {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
}();
#endif

at::Tensor empty(
    c10::IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>, optional<at::Device>,
    optional<bool>, optional<at::MemoryFormat> format
) {
    c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
    return at::detail::empty_generic(size, &allocator, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, optional<at::ScalarType> dtype, optional<at::Layout>,
    optional<at::Device>, optional<bool>
) {
    c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
    return at::detail::empty_strided_generic(size, stride, &allocator, keys, c10::dtype_or_default(dtype));
}

// A tensor as the device's own threads reach it.
at::Tensor reached(const at::Tensor &tensor) {
    int64_t length = tensor.numel() ? 1 : 0;
    for (int64_t at = 0; at < tensor.dim() && length; at++)
        length += (tensor.size(at) - 1) * tensor.stride(at);
    auto bytes = static_cast<size_t>(length) * tensor.itemsize();
    void *address = length ? played::reached(tensor.data_ptr(), bytes) : nullptr;
    auto options = at::TensorOptions().dtype(tensor.scalar_type());
    return at::from_blob(address, tensor.sizes(), tensor.strides(), options);
}

// As CUDA: a copy to the host waits, and so does one between memory of the same form. Others are work of the
// stream: from the device to itself, and where a kernel has to spread what was copied.
at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool non_blocking) {
    if (!to.numel())
        return to;
    bool is_plain = from.is_contiguous() && to.is_contiguous() && from.scalar_type() == to.scalar_type();
    bool is_to_host = to.device().type() != KIND, is_from_host = from.device().type() != KIND;
    auto target = reached(to);
    auto source = is_from_host && !is_plain ? from.clone() : reached(from);
    bool is_blocking = is_to_host || (is_from_host && is_plain);
    auto task = [target, source] {
        c10::InferenceMode mode;  // In it both kinds of tensors may be written.
        target.copy_(source);
    };
    played::copy(task, is_blocking && !(non_blocking && is_plain));
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to) {
    return copy_from(from, to, false);
}

void on_host(const c10::OperatorHandle &op, torch::jit::Stack *stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
    library.impl("empty.memory_format", &empty);
    library.impl("empty_strided", &empty_strided);
    library.impl("_copy_from", &copy_from);
    library.impl("_copy_from_and_resize", &copy_from_and_resize);
    library.impl("as_strided", &at::native::as_strided_tensorimpl);
    library.impl("view", &at::native::view);
    library.impl("_reshape_alias", &at::native::_reshape_alias);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>());
}

#ifdef PLAYED_TORCH_1
// Later versions have this themselves.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, library) {
    library.fallback(torch::CppFunction::makeFallthrough());
}
#endif

}  // namespace
