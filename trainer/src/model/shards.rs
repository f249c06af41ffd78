//! Units gathered, their gradients summed over the processes, and tensors by name.

use std::collections::BTreeMap;

use espalier_distributed::Reduction;
use tch::{IndexOp, Tensor};

use super::TrainModel;
use super::unit::Gathered;
use crate::decoder;
use crate::error::TrainError;
use crate::layout::Flat;

/// Gives a tensor by name and shape.
pub type Find<'a> = dyn FnMut(&str, &[i64]) -> Result<Tensor, TrainError> + 'a;

/// Gradients that were taken out of a model.
#[derive(Debug)]
pub struct Gradients(Vec<Option<Tensor>>);

/// Which tensors to visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Frozen and trained parameters.
    All,
    /// Trained parameters.
    Trained,
    /// Gradients of trained parameters, where there are any.
    Gradients,
}

impl TrainModel {
    /// One shard after the other is put together; with one process nothing is copied.
    pub(crate) fn whole(&self, shard: &Tensor) -> Result<Tensor, TrainError> {
        if self.group.world_size() == 1 {
            return Ok(shard.shallow_clone());
        }
        let elements = shard.size()[0] * self.group.world_size() as i64;
        let mut whole = Tensor::f_empty([elements], (shard.kind(), shard.device()))?;
        self.group.all_gather_into(&mut whole, shard)?;
        Ok(whole)
    }

    pub(super) fn gather(&self, unit: usize, gradients: bool) -> Result<Gathered, TrainError> {
        let unit = &self.units[unit];
        let _guard = tch::no_grad_guard();
        let frozen =
            if unit.layout.frozen.numel() > 0 { self.whole(&unit.frozen)? } else { unit.frozen.shallow_clone() };
        let mut leaves = Vec::new();
        if unit.layout.trained.numel() > 0 {
            let trained = self.whole(unit.compute.as_ref().unwrap_or(&unit.master))?;
            for slot in unit.layout.trained.slots() {
                let leaf =
                    trained.f_narrow(0, slot.offset, slot.numel())?.f_view(slot.shape().as_slice())?.f_detach()?;
                leaves.push(if gradients { leaf.f_set_requires_grad(true)? } else { leaf });
            }
        }
        Ok(Gathered { frozen, leaves })
    }

    /// Sums a unit's gradients over the processes and adds this process's shard to what is there.
    pub(super) fn add_gradients(&mut self, index: usize, gradients: Vec<Option<Tensor>>) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
        let unit = &mut self.units[index];
        if unit.layout.trained.numel() == 0 {
            return Ok(());
        }
        let kind = unit.master.kind();
        let world = self.group.world_size() as i64;
        if world > 1 {
            let whole = decoder::zeros(&[unit.master.size()[0] * world], kind)?;
            for (slot, gradient) in unit.layout.trained.slots().iter().zip(gradients) {
                let Some(gradient) = gradient.filter(Tensor::defined) else { continue };
                whole.f_narrow(0, slot.offset, slot.numel())?.f_copy_(&gradient.f_reshape([-1i64])?)?;
            }
            let mut own = unit.master.f_empty_like()?;
            self.group.reduce_scatter_into(&mut own, &whole)?;
            match &mut unit.gradient {
                Some(total) => drop(total.f_add_(&own)?),
                none => *none = Some(own),
            }
            return Ok(());
        }
        // The first gradient is copied, so that nothing has to be filled with zeros before.
        let first = unit.gradient.is_none();
        let total = unit.gradient.get_or_insert(unit.master.f_empty_like()?);
        for (slot, gradient) in unit.layout.trained.slots().iter().zip(gradients) {
            let mut place = total.f_narrow(0, slot.offset, slot.numel())?;
            match gradient.filter(Tensor::defined) {
                Some(gradient) if first => place.f_copy_(&gradient.f_reshape([-1i64])?)?,
                Some(gradient) => drop(place.f_add_(&gradient.f_to_kind(kind)?.f_reshape([-1i64])?)?),
                None if first => drop(place.f_zero_()?),
                None => {}
            }
        }
        if first {
            let used = unit.layout.trained.numel();
            let _ = total.f_narrow(0, used, total.size()[0] - used)?.f_zero_()?;
        }
        Ok(())
    }

    /// Forgets all gradients.
    pub fn zero_gradients(&mut self) {
        for unit in &mut self.units {
            unit.gradient = None;
        }
    }

    /// Whether something was added to the gradients since they were forgotten last.
    pub fn has_gradients(&self) -> bool {
        self.units.iter().any(|unit| unit.gradient.is_some())
    }

    /// Takes the gradients out; the model begins anew.
    pub fn take_gradients(&mut self) -> Gradients {
        Gradients(self.units.iter_mut().map(|unit| unit.gradient.take()).collect())
    }

    /// Adds gradients that were taken out of this model.
    pub fn add_taken(&mut self, taken: Gradients) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
        for (unit, taken) in self.units.iter_mut().zip(taken.0) {
            match (&mut unit.gradient, taken) {
                (Some(total), Some(taken)) => drop(total.f_add_(&taken)?),
                (none @ None, Some(taken)) => *none = Some(taken),
                (_, None) => {}
            }
        }
        Ok(())
    }

    /// Replaces the gradients; `find` gives each by name and shape.
    pub fn set_gradients(&mut self, find: &mut Find<'_>) -> Result<(), TrainError> {
        let (world, rank) = (self.group.world_size() as i64, self.group.rank() as i64);
        for unit in self.units.iter_mut().filter(|unit| unit.layout.trained.numel() > 0) {
            let len = unit.layout.trained.shard_len(world);
            let mut gradient = unit.master.f_zeros_like()?;
            scatter(&unit.layout.trained, &mut gradient, rank * len, len, find)?;
            unit.gradient = Some(gradient);
        }
        Ok(())
    }

    /// L2 norm of the gradient over all parameters and processes.
    pub fn gradient_norm(&self) -> Result<f64, TrainError> {
        let _guard = tch::no_grad_guard();
        let mut sum = 0.0;
        for gradient in self.units.iter().filter_map(|u| u.gradient.as_ref()) {
            let norm = gradient.f_norm()?.f_double_value(&[])?;
            sum += norm * norm;
        }
        let mut sum = Tensor::f_from_slice(&[sum])?;
        self.group.all_reduce(&mut sum, Reduction::Sum)?;
        Ok(sum.f_double_value(&[0])?.sqrt())
    }

    /// After the trained parameters changed: brings what is computed with up to date.
    pub(crate) fn refresh(&mut self) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
        for unit in &mut self.units {
            if let Some(compute) = &mut unit.compute {
                compute.f_copy_(&unit.master)?;
            }
        }
        Ok(())
    }

    /// Whole tensors by name, one unit at a time: `each` gets a name and a value in the master's type (trained) or the
    /// type of computation (frozen). All processes must call this together.
    pub fn visit(
        &self,
        what: Visit,
        each: &mut dyn FnMut(&str, Tensor) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
        for unit in &self.units {
            let mut flats: Vec<(&Flat, Option<&Tensor>)> = Vec::new();
            if what == Visit::All {
                flats.push((&unit.layout.frozen, Some(&unit.frozen)));
            }
            match what {
                Visit::All | Visit::Trained => flats.push((&unit.layout.trained, Some(&unit.master))),
                Visit::Gradients => flats.push((&unit.layout.trained, unit.gradient.as_ref())),
            }
            for (flat, shard) in flats {
                let Some(shard) = shard.filter(|_| flat.numel() > 0) else { continue };
                let whole = self.whole(shard)?;
                for (offset, part) in flat.parts() {
                    let value = whole.f_narrow(0, offset, part.numel())?.f_view(part.shape.as_slice())?;
                    each(&part.name, value)?;
                }
            }
        }
        Ok(())
    }

    /// Replaces trained tensors; `find` gives each by name and shape.
    pub fn set_trained(&mut self, find: &mut Find<'_>) -> Result<(), TrainError> {
        let world = self.group.world_size() as i64;
        let rank = self.group.rank() as i64;
        for unit in &mut self.units {
            let len = unit.layout.trained.shard_len(world);
            scatter(&unit.layout.trained, &mut unit.master, rank * len, len, find)?;
        }
        self.refresh()
    }

    /// Gradients by name, for tests and inspection.
    pub fn gradients(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        let mut all = BTreeMap::new();
        self.visit(Visit::Gradients, &mut |name, value| {
            all.insert(name.to_owned(), decoder::copied(&value)?);
            Ok(())
        })?;
        Ok(all)
    }
}

/// Copies into one shard what lies in it of each named tensor.
pub(crate) fn scatter(
    flat: &Flat,
    shard: &mut Tensor,
    from: i64,
    len: i64,
    find: &mut Find<'_>,
) -> Result<(), TrainError> {
    let _guard = tch::no_grad_guard();
    for (offset, part) in flat.parts() {
        let value = find(&part.name, &part.shape)?;
        let (start, end) = (offset.max(from), (offset + part.numel()).min(from + len));
        if start < end {
            let value = value.f_reshape([-1i64])?.i(start - offset..end - offset);
            shard.f_narrow(0, start - from, end - start)?.f_copy_(&value)?;
        }
    }
    Ok(())
}
